"""The part of AWX's API that awx/configure.yml uses, on loopback: objects with names, relations, surveys, approvals.

As strict as AWX where a mistake in awx/ would show: references must lead to objects, a job template's playbook must be
in the project, surveys and credential types are checked by AWX's own rules (api/views, models/credential of 24.6.1).
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

Item = dict[str, Any]
TOKEN = "a-token-of-awx"
_TYPES = {"inventories": "inventory"}  # the others lose their s
# What AWX gives back although nobody has set it.
_DEFAULTS: dict[str, Item] = {
    "projects": {"scm_revision": "", "credential": None},
    "inventories": {"kind": "", "host_filter": None},
    "workflow_job_template_nodes": {"extra_data": {}, "limit": "", "identifier": ""},
}
_FIELDS = {"workflow_approval_templates": ("name", "description", "timeout")}
_REFERENCES = {
    "organization": "organizations",
    "project": "projects",
    "inventory": "inventories",
    "execution_environment": "execution_environments",
    "workflow_job_template": "workflow_job_templates",
    "unified_job_template": "unified_job_templates",
}
_UNIFIED = ("job_templates", "projects", "workflow_job_templates", "workflow_approval_templates")
_SURVEY_TYPES: dict[str, Any] = {
    "text": str,
    "textarea": str,
    "password": str,
    "multiplechoice": str,
    "multiselect": str,
    "integer": int,
    "float": (float, int),
}


class Refused(Exception):
    """A request that AWX answers with 400."""


class Awx:
    """`with Awx(repository) as awx`: `awx.url`; `awx.objects[collection]`; `awx.writes`, the requests that would change
    something. `repository` is what the project's checkout has."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.objects: dict[str, list[Item]] = {"organizations": [], "credentials": []}
        self.related: dict[str, list[int]] = {}
        self.surveys: dict[str, Item] = {}
        self.writes: list[tuple[str, str]] = []
        self._last, self._lock = 0, threading.Lock()
        self.create("organizations", {"name": "Default"})
        awx = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, found = 401, {}  # type: tuple[int, Any]
                if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                    code, found = awx.answer(self.command, self.path, json.loads(body or b"null"))
                data = b"" if code == 204 else json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("X-API-Product-Name", "AWX")
                self.send_header("X-API-Product-Version", "24.6.1")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: pytest shows what fails."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Awx:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def named(self, collection: str, name: str) -> Item:
        (found,) = [item for item in self.objects[collection] if item.get("name", item.get("identifier")) == name]
        return found

    def names(self, collection: str, item: Item, relation: str) -> list[str]:
        """The names of what an object is related to."""
        other = collection if relation.endswith("_nodes") else relation
        ids = self.related.get(f"{item['url']}{relation}/", [])
        return [one.get("identifier") or one["name"] for one in self.objects[other] if one["id"] in ids]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        url = urlsplit(path)
        parts = url.path.removeprefix("/api/v2/").strip("/").split("/")
        with self._lock:
            if method != "GET":
                self.writes.append((method, url.path))
            try:
                return self._answer(method, url.path, parts, dict(parse_qsl(url.query, keep_blank_values=True)), body)
            except Refused as error:
                return 400, {"error": str(error), "__all__": [str(error)]}
            except KeyError as error:
                return 404, {"detail": f"not found: {error}"}

    def _answer(self, method: str, path: str, parts: list[str], query: Item, body: Any) -> tuple[int, Any]:
        match method, parts:
            case "GET", [collection]:
                found = [item for item in self._all(collection) if _matches(item, query)]
                return 200, {"count": len(found), "next": None, "previous": None, "results": found}
            case "POST", [collection]:
                return 201, self.create(collection, body)
            case "GET", [collection, number]:
                return 200, self._one(collection, number)
            case "PATCH", [collection, number]:
                item = self._one(collection, number)
                # What its serializer does not know, AWX leaves out.
                known = {key: value for key, value in body.items() if key in _FIELDS.get(collection, body)}
                self._check(collection, {**item, **known})
                item.update(known)
                return 200, item
            case "GET", [_, _, "survey_spec"]:
                return 200, self.surveys.get(path, {})
            case "POST", [collection, number, "survey_spec"]:
                self._one(collection, number)
                _check_survey(body)
                self.surveys[path] = body
                return 200, {}
            case "POST", [collection, number, "create_approval_template"]:
                node = self._one(collection, number)
                known = {key: body[key] for key in _FIELDS["workflow_approval_templates"] if key in body}
                approval = self.create("workflow_approval_templates", known)
                node["unified_job_template"] = approval["id"]
                node["related"]["unified_job_template"] = approval["url"]
                return 201, approval
            case "GET", [collection, number, relation]:
                self._one(collection, number)
                ids = self.related.get(path, [])
                results = [{"id": one} for one in ids]
                return 200, {"count": len(ids), "next": None, "results": results}
            case "POST", [collection, number, relation]:
                self._one(collection, number)
                self._one(collection if relation.endswith("_nodes") else relation, str(body["id"]))
                ids = self.related.setdefault(path, [])
                ids.remove(body["id"]) if body.get("disassociate") else ids.append(body["id"])
                return 204, None
        return 405, {"detail": f"{method} is not allowed"}

    def create(self, collection: str, body: Item) -> Item:
        """As a POST to the collection does."""
        self._last += 1
        url = f"/api/v2/{collection}/{self._last}/"
        kind = _TYPES.get(collection, collection.removesuffix("s"))
        related = {name: f"{url}{name}/" for name in ("survey_spec", "hosts", "children")}
        frame = {"id": self._last, "type": kind, "url": url, "related": related, "summary_fields": {}}
        item = {**_DEFAULTS.get(collection, {}), **body, **frame}
        self._check(collection, item)
        same = ("name", "identifier", "organization", "inventory", "workflow_job_template")
        if any(all(item.get(key) == other.get(key) for key in same) for other in self._all(collection)):
            raise Refused(f"{collection} has {item.get('name')} already")
        self.objects.setdefault(collection, []).append(item)
        return item

    def _all(self, collection: str) -> list[Item]:
        if collection == "unified_job_templates":
            return [item for one in _UNIFIED for item in self.objects.get(one, [])]
        return self.objects.setdefault(collection, [])

    def _one(self, collection: str, number: str) -> Item:
        found = [item for item in self._all(collection) if str(item["id"]) == number]
        if not found:
            raise KeyError(f"{collection}/{number}")
        return found[0]

    def _check(self, collection: str, item: Item) -> None:
        for field, other in _REFERENCES.items():
            if item.get(field) is not None and all(one["id"] != item[field] for one in self._all(other)):
                raise Refused(f"{field} {item[field]} is no object of {other}")
        if collection == "job_templates" and not (self.repository / item["playbook"]).is_file():
            raise Refused(f"Playbook not found for project: {item['playbook']}")
        if collection == "credential_types":
            _check_credential_type(item)
        if collection == "schedules" and not item["rrule"].startswith("DTSTART"):
            raise Refused("rrule: a start is needed")
        if collection == "schedules" and item.get("extra_data"):
            self._check_answers(
                self._one("unified_job_templates", str(item["unified_job_template"])), item["extra_data"]
            )

    def _check_answers(self, template: Item, answers: Item) -> None:
        questions = {one["variable"]: one for one in self.surveys[f"{template['url']}survey_spec/"]["spec"]}
        for name, value in answers.items():
            if name not in questions:
                raise Refused(f"{name} is not asked for by {template['name']}")
            if questions[name]["type"] == "multiplechoice" and value not in questions[name]["choices"]:
                raise Refused(f"{value} is no choice of {name}")
        if missing := [one for one in questions if questions[one]["required"] and one not in {**answers}]:
            raise Refused(f"required answers are missing: {missing}")


def _matches(item: Item, query: Item) -> bool:
    either = {key.removeprefix("or__"): value for key, value in query.items() if key.startswith("or__")}
    every = {key: value for key, value in query.items() if not key.startswith(("or__", "page"))}
    return all(str(item.get(key)) == value for key, value in every.items()) and (
        not either or any(str(item.get(key)) == value for key, value in either.items())
    )


def _check_survey(survey: Item) -> None:
    for field, kind in (("name", str), ("description", str), ("spec", list)):
        if not isinstance(survey.get(field), kind):
            raise Refused(f"Expected {kind.__name__} for field '{field}' of the survey")
    seen: set[str] = set()
    for question in survey["spec"]:
        for field in ("type", "question_name", "variable", "required"):
            if not isinstance(question.get(field), bool if field == "required" else str):
                raise Refused(f"'{field}' missing from survey question {question}")
        if question["variable"] in seen or question["type"] not in _SURVEY_TYPES:
            raise Refused(f"{question['variable']} is there twice, or of no known type")
        seen.add(question["variable"])
        default = question.get("default", "")
        if default != "" and not isinstance(default, _SURVEY_TYPES[question["type"]]):
            raise Refused(f"Default value {default!r} of {question['variable']} is of the wrong type")
        if question["type"] == "multiplechoice" and (default or None) not in [None, *question["choices"]]:
            raise Refused(f"Default choice must be answered from the choices listed: {question['variable']}")


def _check_credential_type(item: Item) -> None:
    """Templates of injectors are rendered with what the fields are named, as AWX does."""
    fields = {field["id"]: "a value" for field in item["inputs"]["fields"]}
    if unknown := set(item["inputs"].get("required", [])) - set(fields):
        raise Refused(f"required fields are not defined: {unknown}")
    files = {name.partition(".")[2]: "/a/file" for name in item["injectors"].get("file", {})}
    known = {**fields, "tower": {"filename": files.get("", files)}}
    sandbox = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)
    for kind, injected in item["injectors"].items():
        if kind not in ("env", "extra_vars", "file"):
            raise Refused(f"{kind} is no injector")
        for name, text in injected.items():
            if kind == "env" and name.startswith(("ANSIBLE_", "AWX_")):
                raise Refused(f"Environment variable {name} is not allowed to be used in credentials")
            if not isinstance(text, str):
                raise Refused(f"{name}: {text!r} is not of type 'string'")
            try:
                sandbox.from_string(text).render(known)
            except jinja2.TemplateError as error:
                raise Refused(f"{name}: {error}") from None
