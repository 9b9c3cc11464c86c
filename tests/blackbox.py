"""A small agent that knows nothing of us: it speaks to an OpenAI-compatible server, and runs what the model says."""

AGENT = '''\
import json, os, subprocess, sys, time, urllib.error, urllib.request

mode = sys.argv[2] if len(sys.argv) > 2 else ""
messages = [{"role": "system", "content": "You fix things."},
            {"role": "user", "content": open(sys.argv[1]).read()}]
tool = {"type": "function", "function": {"name": "bash", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}}}}

def ask():
    body = json.dumps({"model": "any", "messages": messages, "tools": [tool]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {
        "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
        if mode == "stubborn":
            time.sleep(600)
        sys.exit(3)

while True:
    message = ask()
    messages.append(message)
    if not message.get("tool_calls"):
        print(message["content"])
        sys.exit(4 if mode == "gives-up" else 0)
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"],
                         "content": f"exit code: {done.returncode}\\n{done.stdout}{done.stderr}"})
'''
