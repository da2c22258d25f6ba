#!/bin/bash
# The campaign of fleet.py as one would write it by hand, over multiplexed ssh:
#     fleet.sh FOLDER ROUNDS PORT CLIENT SERVER VARIANT...
# FOLDER holds hosts (a line each: name address), ssh_config and spec.json; CLIENT is the load client's Python on the
# hosts, with its module; SERVER the server's command, to which port and variant are added. One shell per host.
set -u
folder=$1 rounds=$2 port=$3 client=$4 server=$5
shift 5

measure() { # NAME ADDRESS VARIANT...
  name=$1 ssh="ssh -F $folder/ssh_config $2"
  shift 2
  $ssh mkdir -p /tmp/by-hand
  $ssh "cat > /tmp/by-hand/spec.json" < "$folder/spec.json"
  for round in $(seq "$rounds"); do
    for variant in "$@"; do
      out=$folder/by-hand/$round/$variant/$name
      mkdir -p "$out"
      $ssh "systemd-run --quiet --unit=by-hand -p StandardOutput=truncate:/tmp/by-hand/server.log $server --port $port --variant $variant"
      $ssh "until { printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3 | grep -q ' 200 '; } 3<> /dev/tcp/127.0.0.1/$port; do sleep 0.1; done" 2> /dev/null
      $ssh "$client /tmp/by-hand/spec.json /tmp/by-hand/raw.json" > "$out/client.log" 2>&1 || echo "$name $round $variant: failed" >&2
      $ssh cat /tmp/by-hand/raw.json > "$out/raw.json"
      $ssh cat /tmp/by-hand/server.log > "$out/server.log"
      $ssh systemctl stop by-hand
    done
  done
  $ssh rm -r /tmp/by-hand
  $ssh -O exit 2> /dev/null
}

while read -r name address; do
  measure "$name" "$address" "$@" < /dev/null &
done < "$folder/hosts"
wait
