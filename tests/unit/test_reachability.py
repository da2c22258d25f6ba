"""What ssh, sudo and Ansible say about a host, word for word as they said it, and what people are told."""

from __future__ import annotations

import pytest

from gpurun.reachability import LOGIN, by_hand, explain, told

SENT = 'Task failed: Data could not be sent to remote host "198.18.4.2". Make sure this host can be reached over ssh: '
CHANGED = (
    "@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n@@@@@@@\r\n"
    "The fingerprint for the ED25519 key sent by the remote host is\n"
    "SHA256:j5xOZRckvp5UzaYMSmqd8IiOVaGEoLj6GylZOvb64Gw.\r\n"
    "Add correct host key in /home/me/my keys/known_hosts to get rid of this message.\r\n"
    "Offending ED25519 key in /home/me/my keys/known_hosts:17\r\n"
    '  remove with:\r\n  ssh-keygen -f "/home/me/my keys/known_hosts" -R "198.18.4.2"\r\n'
    "Host key for {} has changed and you have requested strict checking.\r\nHost key verification failed."
)
OPEN = (
    "@@@@\r\n@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\r\n@@@@\r\n"
    "Permissions 0644 for '/keys/key' are too open.\r\nThis private key will be ignored.\r\n"
    'Load key "/keys/key": bad permissions\r\nroot@198.18.4.2: Permission denied (publickey,password).'
)
DENIED = "root@198.18.4.2: Permission denied (publickey,password)."
CASES = {
    "host_key_changed": [SENT + CHANGED.format("198.18.4.2"), SENT + CHANGED.format("[198.18.4.2]:2222")],
    "host_key_unknown": [
        SENT + "No ED25519 host key is known for 198.18.4.2 and you have requested strict checking.\r\n"
        "Host key verification failed.",
        SENT + "No ED25519 host key is known for [198.18.4.2]:2222 and you have requested strict checking.\r\n"
        "Host key verification failed.",
        SENT + "Host key verification failed.",
    ],
    "key_file": [SENT + OPEN, SENT + f"no such identity: /k/a key: No such file or directory\r\n{DENIED}"],
    "permission_denied": [SENT + DENIED, "Invalid/incorrect password: Permission denied, please try again."],
    "sshpass": ["to use the 'ssh' connection type with passwords, you must install the sshpass program"],
    "name": [SENT + "ssh: Could not resolve hostname nosuch.invalid: Name or service not known"],
    "refused": [SENT + "ssh: connect to host 198.18.4.2 port 23: Connection refused"],
    "no_answer": [
        SENT + "ssh: connect to host 198.18.4.2 port 22: No route to host",
        SENT + "ssh: connect to host 198.18.4.2 port 22: Connection timed out",
    ],
    "jump_host": [
        SENT + "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535"
    ],
    "connection_lost": [
        SENT + "Timeout, server 198.18.4.2 not responding.",
        SENT + "client_loop: send disconnect: Broken pipe",
        SENT,  # ssh itself gave up in the middle of a task, and said nothing
    ],
    "sudo_password": ["Look at the host: Task failed: Missing sudo password", "Task failed: Incorrect sudo password"],
    "not_a_sudoer": ["Module result deserialization failed: bench is not in the sudoers file."],
    "no_python": ["Look at the host and its GPUs: The module interpreter '/usr/bin/python3' was not found."],
    "disk_full": ["OSError: [Errno 28] No space left on device: '/root/.ansible/tmp'"],
}


@pytest.mark.parametrize(("kind", "said"), [(kind, said) for kind, texts in CASES.items() for said in texts])
def test_each_cause_is_recognised(kind: str, said: str) -> None:
    trouble = explain(said)
    assert trouble.kind == kind
    assert "{" not in trouble.message + trouble.fix and "\n" not in trouble.message + trouble.fix


def test_the_line_of_a_changed_key_is_named_and_can_be_removed() -> None:
    trouble = explain(CASES["host_key_changed"][1])
    assert "of 198.18.4.2 is not the one that /home/me/my keys/known_hosts, line 17" in trouble.message
    assert "ssh-keygen -f '/home/me/my keys/known_hosts' -R '[198.18.4.2]:2222'" in trouble.fix


def test_an_unknown_key_on_another_port_is_looked_at_there() -> None:
    assert "ssh-keyscan -p 2222 198.18.4.2 |" in explain(CASES["host_key_unknown"][1]).fix


def test_a_denied_login_names_who_and_what_the_host_takes() -> None:
    message = explain(SENT + DENIED).message
    assert "root@198.18.4.2" in message and "publickey,password" in message


def test_a_lost_host_is_named_with_the_command_that_logs_in_there() -> None:
    options = "-o ProxyJump=gate.example"
    inventory = {"ansible_host": "198.18.4.2", "ansible_port": 2222, "ansible_user": "bench"}
    login = by_hand("gpu7", {**inventory, "ansible_ssh_common_args": options, "ansible_private_key_file": "/k/a key"})
    assert login == f"ssh -i '/k/a key' -p 2222 {options} bench@198.18.4.2"
    assert by_hand("gpu7", {"ansible_host": "{{ address }}"}) == "ssh gpu7"
    fix = explain(f"{SENT}{LOGIN}{login}", "gpu7").fix
    assert fix == f"is gpu7 up, and the network between? By hand: {login}"
    assert explain("Connection closed", "gpu7").fix.endswith("ssh gpu7")


def test_what_is_not_known_is_told_as_it_is() -> None:
    trouble = explain(SENT + "something nobody has seen\r\n")
    assert (trouble.kind, trouble.message) == (None, "something nobody has seen")


def test_hosts_with_one_cause_share_a_hint() -> None:
    message, hint = told({"a": "Missing sudo password", "b": "Missing sudo password"})
    assert message.count("sudo") == 2 and message.startswith("a: ")
    assert hint == explain("Missing sudo password").fix


def test_hosts_with_several_causes_have_a_hint_each() -> None:
    _, hint = told({"a": "Missing sudo password", "b": CASES["name"][0]})
    assert hint.startswith("a: ") and "; b: " in hint
