#!/usr/bin/env python3
"""tests/bench/vllm_peer and open_loop.py against a stand-in for vLLM's server: what counts from when, what is outside, the search,
that nothing hangs and that no server is left behind. Times only have lower bounds that hold on any machine.

As `vllm_peer_test.py stand-in PORT PIDFILE` it is that server. What it does with a request is told by the first token of the prompt."""
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import open_loop  # noqa: E402

WELL, WRONG_STATUS, TOO_SHORT, BROKEN_OFF, SILENT, TOGETHER, PAIRS = range(10, 17)
LATE_S = 0.5


class StandIn:
    """Of vLLM's OpenAI server."""

    def __init__(self, fails_from=None):
        self.bodies, self.gone, self.waiting, self.salts = [], 0, [], []
        self.fails_from = fails_from  # trials from this one on are not answered

    async def start(self, port=0):
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", port, limit=1 << 22, reuse_port=True)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def answer(self, reader, writer):
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            if request.startswith("GET /health"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            else:
                length = int(request.lower().split("content-length:")[1].split()[0])
                await self.complete(json.loads(await reader.readexactly(length)), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def complete(self, body, reader, writer):
        self.bodies.append(body)
        kind = body["prompt"][0]
        if body["cache_salt"] not in self.salts and body["cache_salt"] .split("-")[0] not in ("idle", "first", "once"):
            self.salts.append(body["cache_salt"])
        trial = self.salts.index(body["cache_salt"]) if body["cache_salt"] in self.salts else -1
        if kind == WRONG_STATUS or self.fails_from is not None and trial >= self.fails_from:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
            return
        if kind == SILENT:
            await reader.read()  # until the client has gone
            self.gone += 1
            return
        if kind == TOGETHER:  # nobody is answered before the last has come
            everybody = asyncio.Event()
            self.waiting.append(everybody)
            if len(self.waiting) == body["prompt"][1]:
                for e in self.waiting:
                    e.set()
            await everybody.wait()
        await self.stream(body, kind, writer)

    async def stream(self, body, kind, writer):
        def events(*objects):
            return b"".join(b"data: " + (o if isinstance(o, bytes) else json.dumps(o).encode()) + b"\n\n" for o in objects)

        async def send(data):  # in pieces that end anywhere
            for at in range(0, len(data), 37):
                piece = data[at:at + 37]
                writer.write(f"{len(piece):x};x=y\r\n".encode() + piece + b"\r\n")
                await writer.drain()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        tokens = body["max_tokens"] - (kind == TOO_SHORT)
        token = {"choices": [{"index": 0, "text": "\u00e4"}]}
        for i in range(0, tokens, 2 if kind == PAIRS else 1):
            await send(events(token))
            if i == 0 and kind == PAIRS:
                await asyncio.sleep(0.05)
        if kind == BROKEN_OFF:
            return
        await send(events({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens,
                                                    "prompt_tokens_details": {"cached_tokens": 3}}}, b"[DONE]"))
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def request(kind, due_s=0.0, output=4, more=()):
    return {"due_s": due_s, "output": output, "prompt": [kind, *more]}


def expect(ok, what):
    if not ok:
        raise SystemExit(f"FAILED: {what}")


def run(stand_in, workload, rate=1.0, limits=(60, 60), share=0.9, warmup=0, timeout=30.0, salt="s"):
    async def go():
        server = await stand_in.start()
        return await open_loop.Trial(server, "m", workload, rate, salt, limits, share, warmup, timeout).run()
    return asyncio.run(go())


# ---- what is counted ----

def open_loop_counts_from_due():
    """No request waits for an answer: else the stand-in would answer nobody. And the first has waited for the last."""
    t = run(StandIn(), [request(TOGETHER, i * 1.0, more=(5,)) for i in range(5)], rate=10)
    expect(t.passed() and all(a.ok and a.tokens == 4 and a.cached == 3 for a in t.answers), "five answers")
    for i, a in enumerate(t.answers):
        expect(abs(a.due - t.answers[0].due - i * 0.1) < 1e-6, "due times follow the rate")
        expect(a.first - a.due >= t.answers[-1].due - a.due and a.sent >= a.due, "TTFT counts from due")
    expect(t.figures()["median_ttft_ms"] >= 200, "the one in the middle waited for 0.2 s")


def late_sending_is_no_excuse():
    """What was due before it could be sent has waited since."""
    t = run(StandIn(), [request(WELL, -LATE_S)], limits=(LATE_S / 2, 0), share=0)
    a = t.answers[0]
    expect(a.ok and a.ttft() >= LATE_S - 0.06 and a.end - a.due >= a.ttft() and not a.inside(t.limits), "a late generator's delay counts")
    expect(t.figures()["p99_send_delay_ms"] >= (LATE_S - 0.06) * 1e3, "and is told")


def failures_are_outside():
    kinds = [WELL, WRONG_STATUS, TOO_SHORT, BROKEN_OFF]
    t = run(StandIn(), [request(k) for k in kinds], share=0)
    expect([a.ok for a in t.answers] == [True, False, False, False] and t.inside() == 1, "only a whole answer is inside")
    for a, why in zip(t.answers[1:], ("HTTP 503", "3 tokens came, 4 were wanted", "broke off")):
        expect(why in a.why, f"{why}: {a.why}")
    f = t.figures()
    expect((f["completed"], f["failed"], f["total_output_tokens"], f["total_cached_tokens"]) == (1, 3, 4, 3), "sums")
    t = run(StandIn(), [request(WRONG_STATUS), request(WELL)], warmup=1)
    expect(t.passed() and t.figures()["num_prompts"] == 1, "the warm-up is not counted")


def tpot_of_messages_with_several_tokens():
    t = run(StandIn(), [request(PAIRS, output=4)])
    a = t.answers[0]
    expect(a.ok and a.tokens == 4 and a.last - a.first >= 0.04, "two messages")
    expect(abs(a.tpot() - (a.last - a.first) / 3) < 1e-9, "three gaps in two messages")


def silence_ends():
    s = StandIn()
    t = run(s, [request(SILENT)], share=0, timeout=0.2)
    expect(not t.answers[0].ok and "no answer within" in t.answers[0].why, "a silent server is given up")
    s = StandIn()
    t = run(s, [request(SILENT) for _ in range(9)] + [request(WELL, 3600)], limits=(0.1, 0), timeout=3000)
    expect(t.cut_short and not t.passed() and len(t.answers) == 9, "two of ten late: no need to wait for the rest")


# ---- the search ----

def search_finds_any_limit():
    for limit in (0.02, 0.9, 1.0, 37, 4000):
        for start in (0.02, 1, 9000):
            g = open_loop.Goodput(start, 0.01, 10000, 0.05)
            while not g.over:
                g.tell(g.next <= limit)
            expect(g.passing <= limit < g.failing <= g.passing * 1.05, f"limit {limit} from {start}")
    g = open_loop.Goodput(1, 0.25, 8, 0.05)
    while not g.over:
        g.tell(True)
    expect((g.passing, g.failing, g.trials) == (8, 0, 7), "all hold")
    g = open_loop.Goodput(100, 0.25, 8, 0.05)
    while not g.over:
        g.tell(False)
    expect((g.passing, g.failing, g.trials) == (0, 0.25, 9), "none holds")


def search_on_a_server(folder):
    """The program itself: trials 1 and 2 are answered, no other; a kept server lives on."""
    workload, out = os.path.join(folder, "workload"), os.path.join(folder, "json")
    with open(workload, "w") as f:
        f.writelines(json.dumps(request(WELL, i * 1.0, more=range(1000))) + "\n" for i in range(12))

    async def go(*more):
        s = StandIn(fails_from=2)
        server = await s.start()
        p = await asyncio.create_subprocess_exec(
            sys.executable, os.path.join(HERE, "vllm_peer"), "goodput", "--server", server, "--workload", workload, "--warmup", "2",
            "--rate", "200", "--ttft", "60s", "--tpot", "60s", "--tolerance", "12", "-o", out, "--cache", folder, *more,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text, errors = await asyncio.wait_for(p.communicate(), 120)
        with open(out) as f:
            return s, p.returncode, text.decode(), errors.decode(), json.load(f)
    s, status, text, errors, j = asyncio.run(go())
    g = j["goodput"]
    expect(status == 0 and "vllm goodput 224.000 requests/s" in text, f"224/s: {text}{errors}")
    rates = [round(t["rate"], 3) for t in g["trials"]]
    expect(rates == [200, 224, 280.986, 250.88] and abs(g["rate"] - 224) < 0.001 and abs(g["failing_rate"] - 250.88) < 0.001, f"rates {rates}")
    expect([t["passed"] for t in g["trials"]] == [True, True, False, False] and g["trials"][0]["counted"] == 10, "verdicts")
    expect((j["completed"], j["num_prompts"], j["request_rate"], j["total_output_tokens"]) == (10, 10, g["rate"], 40), "the best trial's figures")
    expect(len(s.salts) == 4, "a cache salt for each trial")
    sent = [b for b in s.bodies if b["cache_salt"] == s.salts[0]]
    expect(sent and all(b["prompt"] == [WELL, *range(1000)] and b["max_tokens"] == 4 for b in sent), "prompts")
    expect(all(b["ignore_eos"] is True and b["temperature"] == 0 and b["stream"] is True for b in sent), "outputs of full length")
    s, status, text, errors, j = asyncio.run(go("--seconds", "0.000001"))
    expect(status == 1 and j["goodput"]["rate"] == 0 and "are over" in text, f"no trial after its time: {text}")
    s, status, text, errors, j = asyncio.run(go("--once"))
    expect(status == 0 and "10 completed, 0 failed" in text and "goodput" not in j, f"one run: {text}{errors}")


def unloaded_is_one_at_a_time():
    s = StandIn()

    async def go():
        return await open_loop.Trial(await s.start(), "m", [request(PAIRS) for _ in range(3)], 1, "s", (0, 0), 0, 0, 30, unloaded=True).run()
    t = asyncio.run(go())
    expect(all(b.due >= a.end > a.due for a, b in zip(t.answers, t.answers[1:])) and len(t.answers) == 3, "one after the other")


def ends_when_told(folder):
    """Also between requests that wait for each other."""
    workload = os.path.join(folder, "silent")
    with open(workload, "w") as f:
        f.writelines(json.dumps(request(SILENT)) + "\n" for _ in range(3))

    async def go():
        s = StandIn()
        p = await asyncio.create_subprocess_exec(
            sys.executable, os.path.join(HERE, "vllm_peer"), "goodput", "--server", await s.start(), "--workload", workload, "--unloaded",
            "--timeout", "2s", "--cache", folder)
        while len(s.bodies) < 1 + 3 + 1:  # one token, the first requests, and one alone
            await asyncio.sleep(0.01)
        p.terminate()
        status = await asyncio.wait_for(p.wait(), 60)
        expect(status == 128 + 15 and len(s.bodies) == 5, f"ended by SIGTERM: {status}, {len(s.bodies)} requests")
    asyncio.run(asyncio.wait_for(go(), 100))


# ---- its own server ----

def peer(folder, *args, wait=True):
    """vllm_peer with this file in the place of vLLM's Python."""
    python, pid = os.path.join(folder, "python"), os.path.join(folder, "pid")
    with open(python, "w") as f:
        f.write(f"#!/bin/sh\ncase \"$*\" in *openai.api_server*) ;; *model*) mkdir \"$4\"; exit ;; *) exit ;; esac\n"
                f"while [ \"$1\" != --port ]; do shift; done\nexec '{sys.executable}' '{os.path.abspath(__file__)}' stand-in \"$2\" '{pid}'\n")
    os.chmod(python, 0o755)
    p = subprocess.Popen([sys.executable, os.path.join(HERE, "vllm_peer"), *args, "--cache", folder], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env={**os.environ, "KVF_VLLM_PYTHON": python})
    return (*p.communicate(timeout=120), p.returncode) if wait else p


def gone(folder):
    with open(os.path.join(folder, "pid")) as f:
        pid = int(f.read())
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().split()[2] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def no_server_is_left(folder):
    workload = os.path.join(folder, "workload")
    text, errors, status = peer(folder, "goodput", "--workload", workload, "--ttft", "60s", "--max-rate", "300", "--rate", "300")
    expect(status == 0 and "300.000" in text and gone(folder), f"ended with its search: {text}{errors}")
    for end in ("terminate", "kill"):
        p = peer(folder, "serve", wait=False)
        expect(p.stdout.readline().startswith("ready http=127.0.0.1:"), "ready")
        getattr(p, end)()
        p.communicate(timeout=60)
        expect(gone(folder), f"no server after {end}")


def skips_without(folder):
    p = subprocess.run([sys.executable, os.path.join(HERE, "vllm_peer"), "offline", "--no-build", "--cache", folder], text=True,
                       stdout=subprocess.PIPE, env={k: v for k, v in os.environ.items() if k != "KVF_VLLM_PYTHON"})
    expect(p.returncode == 77 and "no vLLM in" in p.stdout, "77 with a reason")


async def stand_in(port, pid_file):
    s = StandIn()
    with open(pid_file, "w") as f:
        f.write(str(os.getpid()))
    await s.start(port)
    await asyncio.sleep(600)


def main():
    if sys.argv[1:2] == ["stand-in"]:
        asyncio.run(stand_in(int(sys.argv[2]), sys.argv[3]))
        return
    if sys.version_info < (3, 9):
        print("skip: this Python is older than 3.9")
        sys.exit(77)
    for test in (open_loop_counts_from_due, late_sending_is_no_excuse, failures_are_outside, tpot_of_messages_with_several_tokens, silence_ends,
                 unloaded_is_one_at_a_time, search_finds_any_limit):
        test()
    with tempfile.TemporaryDirectory() as folder:
        for test in (search_on_a_server, ends_when_told, no_server_is_left, skips_without):
            test(folder)
    print("11 passed, 0 failed")


if __name__ == "__main__":
    main()
