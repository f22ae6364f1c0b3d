#!/bin/sh
# A worker that only speaks HTTP, in the shell, with curl and jq.
#
#   TRELLIS_TOKEN=trl_... TYPES="infra/plan" sh curl-worker.sh ./plan.sh
#
# It runs the given program once for each job. The program reads the payload as JSON on its standard
# input and writes the result as JSON to its standard output. Each line on its standard error goes to
# the log of the job, except `::progress CURRENT TOTAL`, which says how far it is. It ends with 0 for
# success, 65 if another try cannot help, anything else if it may. docs/guides/any-language.md
# explains the requests.
set -eu

api=${TRELLIS_API:-http://127.0.0.1:8321}
worker=${WORKER_ID:-$(uname -n)-$$}
poll=${POLL:-2}
heartbeat_every=${HEARTBEAT:-15}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stopping=
trap 'stopping=yes' TERM INT

# Not as an argument of curl: other users of the machine can see those.
printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$TRELLIS_TOKEN" >"$work/headers"
types=$(printf '%s' "${TYPES:-}" | jq -R -c 'split(" ") | map(select(. != ""))')

# send METHOD PATH BODY: write the answer; again until the server answers; fail if it refuses.
send() {
    while :; do
        status=$(printf '%s' "$3" |
            curl -sS --max-time 30 -X "$1" -H "@$work/headers" --data-binary @- \
                -o "$work/answer" -w '%{http_code}' "$api$2" 2>"$work/problem") || status=000
        case $status in
            2*) break ;;
            000 | 408 | 429 | 5*) sleep 1 || true ;;
            *)
                echo "$1 $2: $(cat "$work/answer")" >&2
                return 1
                ;;
        esac
    done
    cat "$work/answer"
}

# report STATUS [JSON]: report the status of the attempt, with further fields.
report() {
    more=${2:-}
    body=$(jq -n -c --arg worker "$worker" --arg attempt "$attempt" --arg status "$1" \
        --argjson more "${more:-null}" \
        '{worker_id: $worker, attempt_id: $attempt, status: $status} + $more')
    send PUT "/api/jobs/$id/status" "$body" >/dev/null
}

# pass_on: send the lines that the program has written since the last time.
pass_on() {
    lines=$(wc -l <"$work/stderr")
    [ "$lines" -gt "$sent" ] || return 0
    [ "$lines" -le $((sent + 500)) ] || lines=$((sent + 500))
    sed -n "$((sent + 1)),${lines}p" "$work/stderr" | tr -d '\000' >"$work/lines"
    sent=$lines
    progress=$(sed -n 's/^::progress \([0-9.]*\) \([0-9.]*\)$/{"progress":{"current":\1,"total":\2}}/p' \
        "$work/lines" | tail -n 1)
    [ -z "$progress" ] || report PROCESSING "$progress" || return 1
    body=$(jq -R -n -c --arg worker "$worker" --arg attempt "$attempt" \
        '{worker_id: $worker, attempt_id: $attempt, lines: [inputs
          | select(startswith("::progress ") | not) | {message: .[0:16000]}]}' <"$work/lines")
    [ "$(printf '%s' "$body" | jq '.lines | length')" -eq 0 ] ||
        send POST "/api/jobs/$id/logs" "$body" >/dev/null
}

# beat: renew the lease; fail if the attempt is no longer ours; set `cancelled` if it is to stop.
beat() {
    state=$(send POST "/api/workers/$worker/heartbeat" '{}' |
        jq -r --arg attempt "$attempt" '.jobs[] | select(.attempt_id == $attempt) | .cancel_requested')
    [ -n "$state" ] || return 1
    [ "$state" = false ] || cancelled=yes
}

# run JOB COMMAND...: run the program for a job, and report how it ended.
run() {
    id=$(printf '%s' "$1" | jq -r .id)
    attempt=$(printf '%s' "$1" | jq -r .attempt_id)
    printf '%s' "$1" | jq -c .payload >"$work/payload"
    shift
    report PROCESSING || return 0
    sent=0 seconds=0 cancelled= lost=
    "$@" <"$work/payload" >"$work/stdout" 2>"$work/stderr" &
    program=$!
    while kill -0 "$program" 2>/dev/null; do
        sleep 1 || true
        seconds=$((seconds + 1))
        pass_on || lost=yes
        [ $((seconds % heartbeat_every)) -ne 0 ] || beat || lost=yes
        if [ -n "$lost$cancelled$stopping" ]; then kill "$program" 2>/dev/null || true; fi
    done
    code=0
    wait "$program" || code=$?
    [ -z "$(tail -c 1 "$work/stderr")" ] || echo >>"$work/stderr"
    while [ -z "$lost" ] && [ "$(wc -l <"$work/stderr")" -gt "$sent" ]; do
        pass_on || lost=yes
    done
    if [ -n "$lost" ]; then
        echo "job $id was taken from this worker" >&2
    elif [ -n "$cancelled" ]; then
        report CANCELLED || true
    elif [ "$code" -eq 0 ]; then
        result=$(jq -c . "$work/stdout" 2>/dev/null || jq -R -s . "$work/stdout")
        report SUCCESS "{\"metadata\": ${result:-null}}" || true
    elif [ -n "$stopping" ]; then
        report QUEUED || true
    else
        report FAILED "$(tail -c 2000 "$work/stderr" | tr -d '\000' | jq -R -s -c --argjson code "$code" \
            '{error: "The program ended with \($code).", code: "exit", detail: .,
              retryable: ($code != 65)}')" || true
    fi
}

while [ -z "$stopping" ]; do
    body=$(jq -n -c --arg worker "$worker" --argjson types "$types" '{worker_id: $worker, types: $types}')
    job=$(send POST /api/jobs/claim "$body") || exit 1
    if [ -n "$job" ]; then run "$job" "$@"; else sleep "$poll" || true; fi
done
send DELETE "/api/workers/$worker" '' >/dev/null || true
