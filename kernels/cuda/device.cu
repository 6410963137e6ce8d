// The CUDA device: finding a GPU, its handle, memory, copies, streams and events, errors.
//
// Every call's status is looked at. The first that is bad is kept in the handle with the name of
// the call, the GPU's UUID, the operations that were under way and what to do; from then on the
// handle does nothing. CUDA's errors are sticky too: the context is lost, a new process is the way
// out.
#include "cuda/ops.cuh"

#include <dlfcn.h>
#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- errors ---

// What a person can do about an error.
static const char *
remedy_of(cudaError_t error)
{
    switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return "the GPU or its driver is older than this build; build for its architecture "
               "(-DCMAKE_CUDA_ARCHITECTURES=...) or update the driver";
    case cudaErrorECCUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNvlinkUncorrectable:
        return "the GPU needs its administrator (nvidia-smi -q shows its state); use another one";
    case cudaErrorMemoryAllocation:
        return "it is out of memory: lower the rows in one pass or the cache blocks, or use "
               "another GPU";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
        return "a kernel has failed, which is a bug of troupe or bad ids: run again with "
               "TROUPE_CUDA_CHECK=1 to learn which operation, and report it; a new process can "
               "use the GPU again";
    default:
        return "start a new process; if it comes back, nvidia-smi and the kernel's log (dmesg) say "
               "more";
    }
}

bool
tr_cuda_ok(troupe_device *d, cudaError_t error, const char *call)
{
    if (error == cudaSuccess) {
        return d->failure.status == TROUPE_OK;
    }
    if (d->failure.status == TROUPE_OK) {
        char during[192] = "";
        if (d->op_count == 1) {
            snprintf(during, sizeof during, " during operation %s", d->op_last);
        } else if (d->op_count > 1) {
            snprintf(during, sizeof during,
                " during one of %ld operations, the first %s, the last %s", d->op_count,
                d->op_first, d->op_last);
        }
        (void)troupe_fail(&d->failure, TROUPE_DEVICE, "%s: %s failed%s: %s (%s); %s", d->name, call,
            during, cudaGetErrorString(error), cudaGetErrorName(error), remedy_of(error));
    }
    return false;
}

void
tr_cuda_refuse(troupe_device *d, const char *op, const char *why)
{
    if (d->failure.status == TROUPE_OK) {
        (void)troupe_fail(&d->failure, TROUPE_DEVICE,
            "%s: operation %s: %s; use device \"cpu\" for this model", d->name, op, why);
    }
}

// Whether the device works; makes it the thread's current one.
static bool
enter(troupe_device *d)
{
    return d->failure.status == TROUPE_OK &&
           tr_cuda_ok(d, cudaSetDevice(d->index), "cudaSetDevice");
}

bool
tr_cuda_begin(troupe_device *d, const char *op)
{
    if (!enter(d)) {
        return false;
    }
    d->op_first = d->op_count == 0 ? op : d->op_first;
    d->op_last = op;
    d->op_count++;
    return true;
}

void
tr_cuda_end(troupe_device *d, const char *op)
{
    (void)op;
    if (tr_cuda_ok(d, cudaGetLastError(), "a kernel's launch") && d->check_each) {
        if (tr_cuda_ok(d, cudaStreamSynchronize(d->stream), "cudaStreamSynchronize")) {
            d->op_count = 0;
        }
    }
}

// --- memory and copies ---

static void *
cuda_alloc(troupe_device *d, size_t bytes)
{
    void *ptr = NULL;
    size_t size = bytes > 0 ? bytes : 1;
    if (!enter(d)) {
        return NULL;
    }
    cudaError_t error = cudaMalloc(&ptr, size);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); // no memory is an answer, not a failure
        return NULL;
    }
    // Zeroed for every stream and handle, so waited for.
    if (!tr_cuda_ok(d, error, "cudaMalloc") ||
        !tr_cuda_ok(d, cudaMemsetAsync(ptr, 0, size, d->stream), "cudaMemsetAsync") ||
        !tr_cuda_ok(d, cudaStreamSynchronize(d->stream), "cudaStreamSynchronize")) {
        return NULL;
    }
    return ptr;
}

static void
cuda_free(troupe_device *d, void *ptr)
{
    if (enter(d)) {
        (void)tr_cuda_ok(d, cudaFree(ptr), "cudaFree");
    }
}

void *
tr_cuda_scratch(troupe_device *d, size_t bytes)
{
    troupe_device_stream *s = d->current;
    if (bytes <= s->scratch_bytes) {
        return s->scratch;
    }
    if (s->scratch != NULL) {
        cuda_free(d, s->scratch);
    }
    s->scratch = cuda_alloc(d, bytes);
    s->scratch_bytes = s->scratch != NULL ? bytes : 0;
    if (s->scratch == NULL) {
        (void)tr_cuda_ok(d, cudaErrorMemoryAllocation, "cudaMalloc of an operation's memory");
    }
    return s->scratch;
}

static troupe_status
copy(troupe_device *d, void *dst, const void *src, size_t bytes, cudaMemcpyKind kind, bool wait)
{
    bool good = enter(d) &&
                tr_cuda_ok(d, cudaMemcpyAsync(dst, src, bytes, kind, d->stream), "cudaMemcpyAsync");
    if (good && wait) {
        good = tr_cuda_ok(d, cudaStreamSynchronize(d->stream), "cudaStreamSynchronize");
    }
    return good ? TROUPE_OK : TROUPE_DEVICE;
}

static troupe_status
cuda_upload(troupe_device *d, void *dst, const void *src, size_t bytes)
{
    return copy(d, dst, src, bytes, cudaMemcpyHostToDevice, true);
}

static troupe_status
cuda_download(troupe_device *d, void *dst, const void *src, size_t bytes)
{
    return copy(d, dst, src, bytes, cudaMemcpyDeviceToHost, true);
}

static troupe_status
cuda_copy(troupe_device *d, void *dst, const void *src, size_t bytes)
{
    return copy(d, dst, src, bytes, cudaMemcpyDeviceToDevice, false);
}

static troupe_status
cuda_zero(troupe_device *d, void *dst, size_t bytes)
{
    bool good =
        enter(d) && tr_cuda_ok(d, cudaMemsetAsync(dst, 0, bytes, d->stream), "cudaMemsetAsync");
    return good ? TROUPE_OK : TROUPE_DEVICE;
}

static troupe_status
cuda_sync(troupe_device *d, troupe_error *err)
{
    for (troupe_device_stream *s = &d->first; s != NULL && enter(d); s = s->next) {
        (void)tr_cuda_ok(d, cudaStreamSynchronize(s->handle), "cudaStreamSynchronize");
    }
    if (d->failure.status != TROUPE_OK) {
        return troupe_fail(err, d->failure.status, "%s", d->failure.text);
    }
    d->op_count = 0;
    return TROUPE_OK;
}

// --- streams and events ---

static troupe_status
failed(const troupe_device *d, troupe_error *err)
{
    return troupe_fail(err, d->failure.status, "%s", d->failure.text);
}

static troupe_status
cuda_stream_new(troupe_device *d, troupe_device_stream **out, troupe_error *err)
{
    cudaStream_t handle = NULL;
    if (!enter(d) || !tr_cuda_ok(d, cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking),
                         "cudaStreamCreateWithFlags")) {
        return failed(d, err);
    }
    troupe_device_stream *s = (troupe_device_stream *)tr_zalloc(1, sizeof *s);
    s->handle = handle;
    s->next = d->first.next;
    d->first.next = s;
    *out = s;
    return TROUPE_OK;
}

static void
cuda_use(troupe_device *d, troupe_device_stream *stream)
{
    d->current = stream != NULL ? stream : &d->first;
    d->stream = d->current->handle;
}

static void
cuda_stream_free(troupe_device *d, troupe_device_stream *stream)
{
    for (troupe_device_stream *s = &d->first; s->next != NULL; s = s->next) {
        if (s->next == stream) {
            s->next = stream->next;
            break;
        }
    }
    if (d->current == stream) {
        cuda_use(d, NULL);
    }
    if (enter(d)) {
        (void)tr_cuda_ok(d, cudaStreamSynchronize(stream->handle), "cudaStreamSynchronize");
        (void)cudaStreamDestroy(stream->handle);
    }
    if (stream->scratch != NULL) {
        cuda_free(d, stream->scratch);
    }
    tr_free(stream);
}

static troupe_status
cuda_event_new(troupe_device *d, troupe_device_event **out, troupe_error *err)
{
    cudaEvent_t handle = NULL;
    if (!enter(d) || !tr_cuda_ok(d, cudaEventCreateWithFlags(&handle, cudaEventDisableTiming),
                         "cudaEventCreateWithFlags")) {
        return failed(d, err);
    }
    *out = (troupe_device_event *)tr_zalloc(1, sizeof **out);
    (*out)->handle = handle;
    return TROUPE_OK;
}

static void
cuda_event_free(troupe_device *d, troupe_device_event *event)
{
    if (enter(d)) {
        (void)cudaEventDestroy(event->handle);
    }
    tr_free(event);
}

static troupe_status
cuda_event_record(troupe_device *d, troupe_device_event *event)
{
    event->recorded =
        enter(d) && tr_cuda_ok(d, cudaEventRecord(event->handle, d->stream), "cudaEventRecord");
    return event->recorded ? TROUPE_OK : TROUPE_DEVICE;
}

static troupe_status
cuda_event_wait(troupe_device *d, troupe_device_event *event)
{
    bool good = enter(d) &&
                (!event->recorded || tr_cuda_ok(d, cudaStreamWaitEvent(d->stream, event->handle, 0),
                                         "cudaStreamWaitEvent"));
    return good ? TROUPE_OK : TROUPE_DEVICE;
}

static troupe_status
cuda_event_done(troupe_device *d, troupe_device_event *event, bool *done)
{
    *done = true;
    if (!enter(d)) {
        return TROUPE_DEVICE;
    }
    cudaError_t error = event->recorded ? cudaEventQuery(event->handle) : cudaSuccess;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        *done = false;
        return TROUPE_OK;
    }
    return tr_cuda_ok(d, error, "cudaEventQuery") ? TROUPE_OK : TROUPE_DEVICE;
}

// --- packed weights ---

static void
cuda_repack(troupe_device *d, troupe_packed_weight *packed, const float *weight)
{
    (void)cuda_copy(
        d, packed->data, weight, (size_t)packed->N * (size_t)packed->K * sizeof *packed->data);
}

static troupe_packed_weight *
cuda_pack(troupe_device *d, const float *weight, int N, int K)
{
    float *data = (float *)cuda_alloc(d, (size_t)N * (size_t)K * sizeof *data);
    if (data == NULL) {
        return NULL;
    }
    troupe_packed_weight *packed = (troupe_packed_weight *)tr_zalloc(1, sizeof *packed);
    packed->data = data;
    packed->N = N;
    packed->K = K;
    cuda_repack(d, packed, weight);
    // Other handles may read it from now on.
    (void)tr_cuda_ok(d, cudaStreamSynchronize(d->stream), "cudaStreamSynchronize");
    return packed;
}

static void
cuda_weight_free(troupe_device *d, troupe_packed_weight *packed)
{
    cuda_free(d, packed->data);
    tr_free(packed);
}

// --- opening ---

static void
print_uuid(char *text, size_t size, const cudaUUID_t &uuid)
{
    int at = snprintf(text, size, "GPU-");
    for (int i = 0; i < 16; ++i) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        at += snprintf(text + at, size - (size_t)at, "%s%02x", dash ? "-" : "",
            (unsigned)(unsigned char)uuid.bytes[i]);
    }
}

static void
cuda_info(troupe_device *d, troupe_device_info *info)
{
    cudaDeviceProp prop;
    int driver = 0, runtime = 0;
    size_t free_bytes = 0, bytes = 0;
    snprintf(info->kind, sizeof info->kind, "cuda");
    snprintf(info->uuid, sizeof info->uuid, "%s", d->name + strlen("cuda:"));
    if (enter(d) &&
        tr_cuda_ok(d, cudaGetDeviceProperties(&prop, d->index), "cudaGetDeviceProperties") &&
        tr_cuda_ok(d, cudaMemGetInfo(&free_bytes, &bytes), "cudaMemGetInfo") &&
        tr_cuda_ok(d, cudaDriverGetVersion(&driver), "cudaDriverGetVersion") &&
        tr_cuda_ok(d, cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion")) {
        snprintf(info->model, sizeof info->model, "%.40s, %d multiprocessors, compute %d.%d",
            prop.name, prop.multiProcessorCount, prop.major, prop.minor);
        snprintf(info->versions, sizeof info->versions, "driver for CUDA %d.%d, runtime %d.%d",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        info->memory_bytes = bytes;
        info->memory_free_bytes = free_bytes;
    }
}

static void
cuda_close(troupe_device *d)
{
    while (d->first.next != NULL) {
        cuda_stream_free(d, d->first.next);
    }
    if (d->first.scratch != NULL) {
        cuda_free(d, d->first.scratch);
    }
    if (d->answer != NULL) {
        cuda_free(d, d->answer);
    }
    if (d->first.handle != NULL && enter(d)) {
        (void)cudaStreamDestroy(d->first.handle);
    }
    tr_free(d);
}

static const troupe_device_table table = {
    .close = cuda_close,
    .get_info = cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .sync = cuda_sync,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .use = cuda_use,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_done = cuda_event_done,
    .weight_pack = cuda_pack,
    .weight_repack = cuda_repack,
    .weight_free = cuda_weight_free,
};

// Why there is no GPU to be had: the driver's library, the driver, or the hardware.
static troupe_status
no_gpu(const char *name, cudaError_t error, troupe_error *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (driver == NULL) {
        return troupe_fail(err, TROUPE_UNSUPPORTED,
            "device \"%s\": NVIDIA's driver library libcuda.so.1 is not on this machine; install "
            "the driver (version 580 or newer), in a container start it with the GPUs passed "
            "through, or use device \"cpu\"",
            name);
    }
    if (error == cudaErrorInsufficientDriver) {
        return troupe_fail(err, TROUPE_UNSUPPORTED,
            "device \"%s\": NVIDIA's driver here is older than CUDA %d.%d needs; update it, or "
            "use device \"cpu\"",
            name, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    return troupe_fail(err, TROUPE_UNSUPPORTED,
        "device \"%s\": the driver shows no GPU (%s); nvidia-smi lists those that there are, and "
        "CUDA_VISIBLE_DEVICES hides what it does not name; or use device \"cpu\"",
        name, error == cudaSuccess ? "none" : cudaGetErrorString(error));
}

// The driver's index of the GPU that `name` means: "cuda", "cuda:N", "cuda:GPU-...".
static troupe_status
find_gpu(const char *name, int count, int *index, troupe_error *err)
{
    const char *which = strchr(name, ':');
    which = which != NULL ? which + 1 : "0";
    char known[640] = "", uuid[48];
    int at = 0;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp prop;
        cudaError_t error = cudaGetDeviceProperties(&prop, i);
        if (error != cudaSuccess) {
            return troupe_fail(err, TROUPE_DEVICE,
                "GPU %d: cudaGetDeviceProperties failed: %s (%s); %s", i, cudaGetErrorString(error),
                cudaGetErrorName(error), remedy_of(error));
        }
        print_uuid(uuid, sizeof uuid, prop.uuid);
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        if (strcmp(which, number) == 0 || strcmp(which, uuid) == 0) {
            *index = i;
            return TROUPE_OK;
        }
        if ((size_t)at < sizeof known) {
            at += snprintf(known + at, sizeof known - (size_t)at, "%scuda:%d (cuda:%s)",
                i > 0 ? ", " : "", i, uuid);
        }
    }
    return troupe_fail(
        err, TROUPE_NOT_FOUND, "device \"%s\" is not here; there are: %s", name, known);
}

// Streams, memory for answers and the UUID as name, on GPU d->index.
static bool
prepare(troupe_device *d)
{
    cudaDeviceProp prop;
    if (!enter(d) ||
        !tr_cuda_ok(d, cudaGetDeviceProperties(&prop, d->index), "cudaGetDeviceProperties")) {
        return false;
    }
    print_uuid(d->name + strlen("cuda:"), sizeof d->name - strlen("cuda:"), prop.uuid);
    if (!tr_cuda_ok(d, cudaStreamCreateWithFlags(&d->first.handle, cudaStreamNonBlocking),
            "cudaStreamCreateWithFlags")) {
        return false;
    }
    cuda_use(d, NULL);
    d->answer = (double *)cuda_alloc(d, sizeof *d->answer);
    return d->answer != NULL;
}

static troupe_status
cuda_open(
    const char *name, const troupe_device_options *options, troupe_device **out, troupe_error *err)
{
    (void)options; // threads mean nothing here
    int count = 0, index = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        return no_gpu(name, error, err);
    }
    troupe_status status = find_gpu(name, count, &index, err);
    if (status != TROUPE_OK) {
        return status;
    }
    const char *check = getenv("TROUPE_CUDA_CHECK");
    troupe_device *d = (troupe_device *)tr_zalloc(1, sizeof *d);
    snprintf(d->name, sizeof d->name, "cuda:%d", index);
    d->head.table = &table;
    d->head.ops = &tr_cuda_ops;
    d->head.name = d->name;
    d->index = index;
    d->check_each = check != NULL && strcmp(check, "0") != 0;
    if (!prepare(d)) {
        status = d->failure.status != TROUPE_OK
                     ? troupe_fail(err, d->failure.status, "%s", d->failure.text)
                     : troupe_fail(err, TROUPE_NO_MEMORY,
                           "%s has no memory left at all; nvidia-smi shows who has it", d->name);
        cuda_close(d);
        return status;
    }
    *out = d;
    return TROUPE_OK;
}

extern "C" __attribute__((visibility("default")))
const troupe_device_module troupe_device_module_export __asm__(TROUPE_DEVICE_MODULE_SYMBOL) = {
    .abi = TROUPE_DEVICE_ABI,
    .table_size = sizeof(troupe_device_table),
    .ops_size = sizeof(troupe_ops),
    .open = cuda_open,
};
