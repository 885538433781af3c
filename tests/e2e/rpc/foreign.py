"""A foreign client: it knows no .proto file, only what reflection tells."""
import subprocess
import sys
import threading

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

failures = []


def expect(what, got, wanted):
    if got != wanted:
        failures.append(what)
        print(f"FAILED {what}: got {got!r}, wanted {wanted!r}")
    else:
        print(f"ok {what}")


def method(channel, pool, service, name):
    found = pool.FindServiceByName(service).methods_by_name[name]
    request, response = GetMessageClass(found.input_type), GetMessageClass(found.output_type)
    kind = ("stream" if found.client_streaming else "unary") + "_" + ("stream" if found.server_streaming else "unary")
    call = getattr(channel, kind)(
        f"/{service}/{name}", request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )
    return call, request


def status_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    return None


def main(address):
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = sorted(database.get_services())
        expect("services by reflection", services, [
            "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
            "kvf.test.v1.Echo"])
        pool = DescriptorPool(database)
        published = pool.FindMessageTypeByName("kvferry.v1.SamplingParams").fields_by_name["top_p"]
        expect("optional is published as optional", published.has_presence, True)
        text = pool.FindMessageTypeByName("kvferry.v1.ChatMessage").fields_by_name["content"]
        expect("text is published as string", text.type, text.TYPE_STRING)

        v1 = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
        answers = list(v1(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        expect("reflection v1", len(answers[0].list_services_response.service), 4)

        check, check_request = method(channel, pool, "grpc.health.v1.Health", "Check")
        expect("health", check(check_request()).status, 1)
        expect("health of nobody", status_of(lambda: check(check_request(service="nope"))).code(), grpc.StatusCode.NOT_FOUND)

        say, note = method(channel, pool, "kvf.test.v1.Echo", "Say")
        answer = say(note(text="grüße", payload=b"\0\1", number=7))
        expect("unary", (answer.text, answer.payload, answer.number), ("grüße", b"\0\1", 7))
        error = status_of(lambda: say(note(text="fail")))
        expect("error code", error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        expect("error text", error.details(), "prompt has 9000 tokens\n100% ü ?")
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        for kind in (b"ErrorInfo", b"BadRequest", b"RetryInfo"):
            expect(f"details hold {kind.decode()}", b"type.googleapis.com/google.rpc." + kind in details, True)
        expect("deadline", status_of(lambda: say(note(text="hold"), timeout=0.3)).code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        expect("too long", status_of(lambda: say(note(payload=bytes(5 << 20)))).code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        compressed = say(note(text="z" * 10000), compression=grpc.Compression.Gzip)
        expect("compressed request", len(compressed.text), 10000)
        never = channel.unary_unary("/kvf.test.v1.Unserved/Never")
        expect("unknown method", status_of(lambda: never(b"")).code(), grpc.StatusCode.UNIMPLEMENTED)
        garbage = channel.unary_unary("/kvf.test.v1.Echo/Say")
        expect("garbage", status_of(lambda: garbage(b"\xff\xff\xff")).code(), grpc.StatusCode.INVALID_ARGUMENT)

        count, count_request = method(channel, pool, "kvf.test.v1.Echo", "Count")
        numbers = [message.number for message in count(count_request(count=5000, pad_bytes=100))]
        expect("stream in order", numbers == list(range(5000)), True)
        stream = count(count_request(wait=True))
        expect("first of a stream", next(stream).number, 0)
        stream.cancel()
        expect("cancelled", status_of(lambda: next(stream)).code(), grpc.StatusCode.CANCELLED)

        talk, note = method(channel, pool, "kvf.test.v1.Echo", "Talk")
        echoes = [message.number for message in talk(note(number=i) for i in range(1000))]
        expect("bidi echo", echoes == list(range(1000)), True)
        opened = talk(iter(()))
        expect("bidi of nothing", list(opened), [])

        got = []
        threads = [threading.Thread(target=lambda k=k: got.append(say(note(number=k)).number)) for k in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect("50 threads", sorted(got), list(range(50)))


server = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    main(server.stdout.readline().split()[1])
finally:
    server.stdin.close()
    expect("server ends well", server.wait(60), 0)
sys.exit(1 if failures else 0)
