"""Open-loop load on an OpenAI-compatible completions server, counted as `kvferry bench serve` counts (kvf/load_tally.h,
kvf/load_goodput.h): a request goes out when it is due, whatever became of the others; all its times count from then; one that failed,
or whose output is not as long as the workload says, is outside of every limit. Standard library only.

Workload: JSON lines {"due_s", "output", "prompt"} of `kvferry bench serve --rate 1 --dump-workload FILE`; at a rate r a request is due
at due_s / r. Each trial has a cache salt of its own."""
import asyncio
import gc
import json
import math
import os
import time

TRIALS_MAX = 64


class Goodput:
    """The search of kvf/load_goodput.h: up or down by factors that grow, then the geometric mean, until failing / passing <=
    1 + tolerance."""

    def __init__(self, start, low, high, tolerance):
        self.low, self.high, self.tolerance = low, high, tolerance
        self.passing = self.failing = 0.0
        self.next = min(max(start, low), high)
        self.trials, self.over, self.factor = 0, False, 1 + tolerance

    def tell(self, passed):
        if passed:
            self.passing = self.next
        else:
            self.failing = self.next
        self.trials += 1
        if self.passing and self.failing:
            self.over = self.failing <= self.passing * (1 + self.tolerance) * (1 + 1e-9)  # a mean of two steps is one step away
            self.next = math.sqrt(self.passing * self.failing)
        else:
            self.over = self.next >= self.high if passed else self.next <= self.low
            self.next = min(self.next * self.factor, self.high) if passed else max(self.next / self.factor, self.low)
            self.factor = min(self.factor ** 2, 2)
        self.over = self.over or self.trials == TRIALS_MAX


class Answer:
    """Of one request; seconds of the monotonic clock, 0: not yet."""

    def __init__(self, due, request):
        self.due, self.input, self.output = due, len(request["prompt"]), request["output"]
        self.sent = self.first = self.last = self.end = 0.0
        self.tokens = self.cached = 0
        self.ok, self.lost, self.why = False, False, ""

    def ttft(self):
        return self.first - self.due

    def tpot(self):
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def inside(self, limits):
        ttft, tpot = limits
        return self.ok and not (ttft and self.ttft() > ttft) and not (tpot and self.tpot() > tpot)


# ---- one request ----

async def head(reader):
    """Status and headers of an answer."""
    status = (await reader.readline()).split()
    if len(status) < 2:
        raise ValueError("the server closed the connection")
    headers = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip().lower()
    return int(status[1]), headers


async def parts(reader, headers):
    if headers.get("transfer-encoding") != "chunked":
        while part := await reader.read(65536):
            yield part
        return
    while line := await reader.readline():
        if (size := int(line.split(b";")[0], 16)) == 0:
            return
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    raise ValueError("the stream broke off")


async def events(reader, headers):
    """The JSON objects of server-sent events, up to [DONE]."""
    rest = b""
    async for part in parts(reader, headers):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if (text := line[5:].strip()) == b"[DONE]":
                return
            yield json.loads(text)
    raise ValueError("the stream ended before its end was said")


def post(server, path, body):
    return (f"POST {path} HTTP/1.1\r\nHost: {server}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n").encode() + body


def request_bytes(server, model, request, salt):
    return post(server, "/v1/completions", json.dumps(
        {"model": model, "prompt": request["prompt"], "max_tokens": request["output"], "temperature": 0, "ignore_eos": True, "stream": True,
         "stream_options": {"include_usage": True}, "cache_salt": salt}, separators=(",", ":")).encode())


async def exchange(server, message, a, on_token):
    """Sends and reads one answer; fills a. What is wrong is a ValueError, an OSError or an EOFError."""
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(message)
        status, headers = await head(reader)
        if status != 200:
            raise ValueError(f"HTTP {status}: {(await reader.read(200)).decode('utf-8', 'replace')}")
        async for event in events(reader, headers):
            if event.get("error"):
                raise ValueError(str(event["error"])[:200])
            if event.get("choices"):
                a.last = time.monotonic()
                a.first = a.first or a.last
                on_token(a)
            if usage := event.get("usage"):
                a.tokens = usage["completion_tokens"]
                a.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                if usage["prompt_tokens"] != a.input:
                    raise ValueError(f"{usage['prompt_tokens']} tokens of prompt, {a.input} were sent")
        if a.tokens != a.output:
            raise ValueError(f"{a.tokens} tokens came, {a.output} were wanted")
        a.ok = True
    finally:
        writer.transport.abort()  # an answer that is no longer wanted ends here, and the server sees it


# ---- one trial ----

class Trial:
    """One run of the workload at one rate. `limits`: (TTFT, TPOT) in seconds, 0: none. Ends early (cut_short) once fewer than `share` of
    the counted can be inside; share 0: never. `unloaded`: each request when the one before is over, whatever the rate."""

    def __init__(self, server, model, workload, rate, salt, limits, share, warmup, timeout, unloaded=False):
        self.unloaded = unloaded
        self.server, self.model, self.workload, self.rate, self.salt = server, model, workload, rate, salt
        self.limits, self.share, self.warmup, self.timeout = limits, share, warmup, timeout
        self.messages = [request_bytes(server, model, r, salt) for r in workload]  # made before, so that sending costs little
        self.answers, self.lost, self.cut_short = [], 0, False
        counted = len(workload) - warmup
        self.lost_max = int((1 - share) * counted + 1e-9) if share else counted

    def note_lost(self, i):
        a = self.answers[i]
        if i < self.warmup or a.lost:
            return
        late = self.limits[0] and (a.first or time.monotonic()) - a.due > self.limits[0]
        if late or a.end and not a.inside(self.limits):
            a.lost = True
            self.lost += 1
            if self.lost > self.lost_max:
                self.cut_short = True
                self.early.set()

    async def one(self, i):
        a = self.answers[i]
        a.sent = time.monotonic()
        alarm = None
        if self.limits[0] and self.share:
            alarm = asyncio.get_running_loop().call_later(max(0, a.due + self.limits[0] - a.sent) + 0.001, self.note_lost, i)
        try:
            await asyncio.wait_for(exchange(self.server, self.messages[i], a, lambda _: self.note_lost(i)), self.timeout)
        except asyncio.CancelledError:
            a.why = "cancelled"
        except (asyncio.TimeoutError, TimeoutError):
            a.why = f"no answer within {self.timeout:g} s"
        except (ValueError, KeyError, OSError, EOFError) as e:
            a.why = str(e) or type(e).__name__
        a.end = time.monotonic()
        if alarm:
            alarm.cancel()
        self.note_lost(i)

    async def send_all(self):
        start, tasks = time.monotonic() + 0.05, []
        for i, request in enumerate(self.workload):
            due = time.monotonic() if self.unloaded else start + request["due_s"] / self.rate
            while (left := due - time.monotonic()) > 0 and not self.early.is_set():
                try:
                    await asyncio.wait_for(self.early.wait(), left)
                except (asyncio.TimeoutError, TimeoutError):
                    pass
            if self.early.is_set():
                break
            self.answers.append(Answer(due, request))
            tasks.append(asyncio.create_task(self.one(i)))
            await (tasks[-1] if self.unloaded else asyncio.sleep(0))
        return tasks

    async def run(self):
        self.early = asyncio.Event()
        cpu = time.process_time()
        gc.collect()
        gc.disable()
        try:
            tasks = await self.send_all()
            over = asyncio.gather(*tasks)
            early = asyncio.create_task(self.early.wait())
            await asyncio.wait([over, early], return_when=asyncio.FIRST_COMPLETED)
            if self.early.is_set():
                for t in tasks:
                    t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            early.cancel()
        finally:
            gc.enable()
        self.client_cpu_s = time.process_time() - cpu
        return self

    # ---- what it adds up to ----

    def counted(self):
        return self.answers[self.warmup:]

    def inside(self):
        return sum(a.inside(self.limits) for a in self.counted())

    def passed(self):
        return not self.cut_short and self.inside() >= self.share * len(self.counted()) - 1e-9

    def figures(self):
        counted = self.counted()
        good = [a for a in counted if a.ok]
        seconds = max((a.end for a in counted), default=0) - counted[0].due if counted else 0
        tokens = sum(a.tokens for a in good)
        out = {"request_rate": self.rate, "num_prompts": len(self.workload) - self.warmup, "warmup": self.warmup, "duration": seconds,
               "completed": len(good), "failed": len(counted) - len(good), "total_input_tokens": sum(a.input for a in good),
               "total_output_tokens": tokens, "total_cached_tokens": sum(a.cached for a in good),
               "request_throughput": len(good) / seconds if seconds > 0 else 0, "output_throughput": tokens / seconds if seconds > 0 else 0,
               "request_goodput": self.inside() / seconds if seconds > 0 else 0}
        for name, values in (("ttft", [a.ttft() for a in good]), ("tpot", [a.tpot() for a in good if a.tokens > 1]),
                             ("e2el", [a.end - a.due for a in good])):
            values.sort()
            out[f"mean_{name}_ms"] = 1e3 * sum(values) / len(values) if values else 0
            for key, percent in (("median", 50), ("p90", 90), ("p99", 99)):
                out[f"{key}_{name}_ms"] = 1e3 * percentile(values, percent)
        out["p99_send_delay_ms"] = 1e3 * percentile(sorted(max(0, a.sent - a.due) for a in counted), 99)
        out["client_cpu_s"] = self.client_cpu_s
        errors = [a.why for a in counted if a.why and a.why != "cancelled"]
        return {**out, "first_error": errors[0]} if errors else out

    def verdict(self):
        f = self.figures()
        return {"rate": self.rate, "passed": self.passed(), "cut_short": self.cut_short, "counted": len(self.counted()),
                "inside": self.inside(), "failed": f["failed"], "p90_ttft_ms": f["p90_ttft_ms"], "p90_tpot_ms": f["p90_tpot_ms"],
                **({"first_error": f["first_error"]} if "first_error" in f else {})}


def percentile(values, percent):
    """The smallest of sorted values that at least `percent` of them are not above."""
    return values[max(0, math.ceil(percent / 100 * len(values) - 1e-9) - 1)] if values else 0.0


# ---- the search ----

def read_workload(path):
    with open(path) as f:
        return [json.loads(line) for line in f if line.strip()]


async def one_token(server, model, timeout):
    """A server that has forgotten what was cut short answers this at once; why it does not, or None."""
    request = {"prompt": [1], "output": 1}
    a = Answer(time.monotonic(), request)
    try:
        await asyncio.wait_for(exchange(server, request_bytes(server, model, request, "idle"), a, lambda _: None), timeout)
    except (asyncio.TimeoutError, TimeoutError, ValueError, KeyError, OSError, EOFError) as e:
        return str(e) or type(e).__name__
    return None


async def find(server, model, workload, search, limits, share, warmup, timeout, seconds, say):
    """Trials, best trial (the highest rate that passed, else the last), and why the search broke off (None: it did not)."""
    trials, best, begin, mark = [], None, time.monotonic(), os.urandom(6).hex()
    while not search.over:
        if (why := await one_token(server, model, timeout)):
            return trials, best, f"the server does not answer any more: {why}"
        if seconds and time.monotonic() - begin > seconds:
            return trials, best, f"{seconds:g} s are over"
        t = await Trial(server, model, workload, search.next, f"{mark}-{len(trials)}", limits, share, warmup, timeout).run()
        passed = t.passed()
        if passed or search.passing == 0:
            best = t
        trials.append(t.verdict())
        search.tell(passed)
        say(f"trial {len(trials):2}: {t.rate:8.3f} requests/s, {t.inside()} of {len(t.counted())} inside"
            f"{' when cut short' if t.cut_short else ''}: {'holds' if passed else 'does not hold'}")
    return trials, best, None
