/* Kernels of the product on streams of the fake runtime: queued, in order, joined by events, captured in graphs. */
#include "cuda_test.h"
#include "fake_test.h"

static kvf_cuda_api cuda;
enum { ROWS = 3, HIDDEN = 256 };

struct tensors {
    halves host;
    void *out, *x, *add, *w;
};

static void *to_device(const void *from, size_t len_bytes) {
    void *p;
    assert_int_equal(cuda.memory_take(&p, len_bytes), 0);
    assert_int_equal(cuda.copy(p, from, len_bytes, KVF_CUDA_HOST_TO_DEVICE), 0);
    return p;
}

static halves norm_now(const std::vector<float> &x, const std::vector<float> &w) {
    std::vector<float> want(ROWS * HIDDEN);
    halves h(ROWS * HIDDEN);
    for (int r = 0; r < ROWS; r++)
        kvf_kernels_find("ref")->rms_norm(&x[r * HIDDEN], w.data(), 1e-5f, HIDDEN, &want[r * HIDDEN]);
    for (size_t i = 0; i < h.size(); i++) h[i] = half_of(want[i]);
    return h;
}

static void a_launch_is_queued_on_its_stream(void **state) {
    maker m;
    std::vector<float> x(ROWS * HIDDEN), w(HIDDEN);
    for (auto &v : x) v = m.next() * 3;
    for (auto &v : w) v = 1 + 0.1f * m.next();
    void *dx = to_device(x.data(), x.size() * 4), *dw = to_device(w.data(), w.size() * 4), *out;
    assert_int_equal(cuda.memory_take(&out, ROWS * HIDDEN * 2), 0);
    kvf_cuda_stream a, b;
    kvf_cuda_event done;
    cuda.stream_create(&a, KVF_CUDA_STREAM_NON_BLOCKING, 0);
    cuda.stream_create(&b, KVF_CUDA_STREAM_NON_BLOCKING, 0);
    cuda.event_create(&done, KVF_CUDA_EVENT_NO_TIMING);
    halves got(ROWS * HIDDEN);
    fake_cuda_fault("kernel", 1, FAKE_HANG, 0);
    kvf_cuda_rms_norm((kvf_half_bits *)out, (float *)dx, NULL, KVF_CUDA_F16, (const float *)dw, 1e-5f, ROWS, HIDDEN, a);
    assert_int_equal(cuda.stream_query(a), KVF_CUDA_NOT_READY);
    cuda.event_record(done, a);
    cuda.stream_wait(b, done, 0);
    cuda.copy_async(got.data(), out, got.size() * 2, KVF_CUDA_DEVICE_TO_HOST, b);
    while (fake_cuda_hanging() == 0) {
    }
    fake_cuda_release();
    assert_int_equal(cuda.stream_synchronize(b), 0);
    assert_near("rms norm on a stream", got, floats_of(norm_now(x, w)), 4e-4);

    /* The same captured, over other input each time. */
    kvf_cuda_graph graph;
    kvf_cuda_graph_exec exec;
    assert_int_equal(cuda.capture_begin(a, KVF_CUDA_CAPTURE_THREAD_LOCAL), 0);
    kvf_cuda_rms_norm((kvf_half_bits *)out, (float *)dx, NULL, KVF_CUDA_F16, (const float *)dw, 1e-5f, ROWS, HIDDEN, a);
    assert_int_equal(cuda.capture_end(a, &graph), 0);
    assert_int_equal(cuda.graph_instantiate(&exec, graph, 0), 0);
    for (int round = 0; round < 3; round++) {
        for (auto &v : x) v = m.next();
        cuda.copy_async(dx, x.data(), x.size() * 4, KVF_CUDA_HOST_TO_DEVICE, a);
        assert_int_equal(cuda.graph_launch(exec, a), 0);
        cuda.copy_async(got.data(), out, got.size() * 2, KVF_CUDA_DEVICE_TO_HOST, a);
        assert_int_equal(cuda.stream_synchronize(a), 0);
        assert_near("rms norm of a graph", got, floats_of(norm_now(x, w)), 4e-4);
    }
    cuda.graph_exec_destroy(exec);
    cuda.graph_destroy(graph);
    cuda.event_destroy(done);
    cuda.stream_destroy(a);
    cuda.stream_destroy(b);
    for (void *p : {dx, dw, out}) cuda.memory_give(p);
}

static void a_launch_after_a_sticky_error_does_nothing(void **state) {
    kvf_cuda_stream s;
    cuda.stream_create(&s, 0, 0);
    std::vector<float> x(ROWS * HIDDEN, 1), w(HIDDEN, 1);
    void *dx = to_device(x.data(), x.size() * 4), *dw = to_device(w.data(), w.size() * 4);
    fake_cuda_fault("kernel", 1, FAKE_STICKY, KVF_CUDA_LAUNCH_FAILED);
    for (int i = 0; i < 2; i++)
        kvf_cuda_rms_norm(
            (kvf_half_bits *)dx, (float *)dx, NULL, KVF_CUDA_F16, (const float *)dw, 1e-5f, ROWS, HIDDEN, s);
    assert_int_equal(cuda.stream_synchronize(s), KVF_CUDA_LAUNCH_FAILED);
    kvf_cuda_rms_norm((kvf_half_bits *)dx, (float *)dx, NULL, KVF_CUDA_F16, (const float *)dw, 1e-5f, ROWS, HIDDEN, s);
    assert_int_equal(cuda.last_error(), KVF_CUDA_LAUNCH_FAILED);
    fake_cuda_reset();
    assert_int_equal(cuda.copy(x.data(), dx, x.size() * 4, KVF_CUDA_DEVICE_TO_HOST), 0);
    for (float v : x) assert_true(v == 1);
    cuda.memory_give(dx);
    cuda.memory_give(dw);
    cuda.stream_destroy(s);
}

int main(void) {
    fake_open(&cuda, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_launch_is_queued_on_its_stream),
        cmocka_unit_test(a_launch_after_a_sticky_error_does_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
