"""A foreign client of a whole cluster: knows no .proto file, only what reflection tells. foreign_client.py KVFERRY MODEL."""
import subprocess
import sys
import threading

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

failures = 0


def expect(what, got, wanted):
    global failures
    ok = got == wanted
    failures += not ok
    print(f"ok {what}" if ok else f"FAILED {what}: got {got!r}, wanted {wanted!r}")


class Client:
    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = DescriptorPool(self.database)

    def method(self, service, name):
        found = self.pool.FindServiceByName(service).methods_by_name[name]
        request, response = GetMessageClass(found.input_type), GetMessageClass(found.output_type)
        kind = self.channel.unary_stream if found.server_streaming else self.channel.unary_unary
        call = kind(
            f"/{service}/{name}", request_serializer=request.SerializeToString, response_deserializer=response.FromString)
        return call, request


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    return None


def generate_request(request, ids, count, mode):
    r = request()
    r.token_ids.ids.extend(ids)
    r.sampling.temperature = 0.0
    r.stop.max_tokens = count
    r.stop.ignore_eos = True
    r.output.token_ids = True
    r.output.logprobs = True
    values = r.DESCRIPTOR.fields_by_name["disaggregate"].enum_type.values_by_name
    r.disaggregate = values["DISAGGREGATE_" + mode].number
    return r


def check_inference(client):
    services = set(client.database.get_services())
    expect("services", {"kvferry.v1.Inference", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection"} <= services, True)
    expect("no admin calls for clients", "kvferry.v1.Cluster" in services, False)
    health, health_request = client.method("grpc.health.v1.Health", "Check")
    expect("health", health(health_request(service="kvferry.v1.Inference")).status, 1)
    models, models_request = client.method("kvferry.v1.Inference", "ListModels")
    model = models(models_request()).models[0]
    expect("model", (model.vocab_size, model.block_tokens), (320, 16))
    generate, request = client.method("kvferry.v1.Inference", "Generate")
    ids = [(7 * k) % 256 for k in range(300)]
    answers = {}
    for mode in ("ALWAYS", "NEVER", "AUTO"):
        events = list(generate(generate_request(request, ids, 12, mode), timeout=60))
        kinds = [e.WhichOneof("event") for e in events]
        expect(f"{mode}: order of events", (kinds[0], kinds[-1], kinds.count("admitted"), kinds.count("finished")),
            ("admitted", "finished", 1, 1))
        expect(f"{mode}: prompt counted", events[0].admitted.prompt_tokens, 300)
        answers[mode] = [t for e in events if e.WhichOneof("event") == "chunk" for t in e.chunk.token_ids]
        expect(f"{mode}: usage", events[-1].finished.usage.completion_tokens, 12)
        if mode == "ALWAYS":
            expect("pages moved", events[-1].finished.timings.pages_moved > 0, True)
    expect("equal answers", answers["ALWAYS"] == answers["NEVER"] == answers["AUTO"] and len(answers["AUTO"]) == 12, True)
    complete, _ = client.method("kvferry.v1.Inference", "Complete")
    whole = complete(generate_request(request, ids, 12, "ALWAYS"), timeout=60)
    expect("unstreamed", list(whole.completions[0].token_ids), answers["ALWAYS"])
    bad = generate_request(request, ids, 12, "AUTO")
    bad.sampling.temperature = -1
    error = error_of(lambda: list(generate(bad, timeout=60)))
    expect("bad parameter", error.code(), grpc.StatusCode.INVALID_ARGUMENT)
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    expect("field is named", b"sampling.temperature" in details and b"google.rpc.BadRequest" in details, True)
    expect("deadline", error_of(lambda: list(generate(generate_request(request, ids, 3000, "AUTO"), timeout=0.02))).code(),
        grpc.StatusCode.DEADLINE_EXCEEDED)
    stream = generate(generate_request(request, ids, 3000, "ALWAYS"))
    next(stream)
    stream.cancel()
    expect("cancel", error_of(lambda: list(stream)).code(), grpc.StatusCode.CANCELLED)
    check_crowd(generate, request, ids, answers["AUTO"])


def check_crowd(generate, request, ids, wanted):
    got = []

    def one(mode):
        events = generate(generate_request(request, ids, 12, mode), timeout=60)
        got.append([t for e in events if e.WhichOneof("event") == "chunk" for t in e.chunk.token_ids])

    threads = [threading.Thread(target=one, args=(mode,)) for mode in ("ALWAYS", "NEVER", "AUTO") * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect("24 threads", got == [wanted] * 24, True)


def check_admin(client):
    cluster, request = client.method("kvferry.v1.Cluster", "GetCluster")
    state = cluster(request())
    expect("nodes", sorted(n.id for n in state.nodes), ["d0", "p0", "router"])
    watch, watch_request = client.method("kvferry.v1.Cluster", "WatchCluster")
    stream = watch(watch_request(interval_ms=50))
    expect("watch", [len(next(stream).nodes), len(next(stream).nodes)], [3, 3])
    stream.cancel()
    audit, audit_request = client.method("kvferry.v1.Cluster", "Audit")
    for _ in range(1000):
        answer = audit(audit_request())
        if answer.at_rest:
            break
    expect("audit", (answer.at_rest, len(answer.violations)), (True, 0))


server = subprocess.Popen([sys.argv[1], "serve", "--model", sys.argv[2], "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL, text=True)
try:
    ready = server.stdout.readline().split()
    expect("ready", ready[:1], ["ready"])
    addresses = dict(word.split("=", 1) for word in ready[1:])
    check_inference(Client(addresses["grpc"]))
    check_admin(Client(addresses["admin"]))
finally:
    server.terminate()
    expect("serve ends well", server.wait(60), 0)
sys.exit(1 if failures else 0)
