/*
 * A management library for programs that use soft-gpu directly: soft-gpu has none, and NCCL does
 * not start without one. It reports one device, for any address, without links.
 */
enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    int type, result;
    unsigned long long value;
} Field;

static int device;

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == SUCCESS ? "Success" : "Not Supported"; }

int nvmlDeviceGetCount(unsigned *count) {
    *count = 1;
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) { return nvmlDeviceGetCount(count); }

int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
    *handle = &device;
    return index == 0 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return nvmlDeviceGetHandleByIndex(index, handle); }

int nvmlDeviceGetHandleByPciBusId(const char *address, void **handle) {
    (void)address;
    return nvmlDeviceGetHandleByIndex(0, handle);
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **handle) {
    return nvmlDeviceGetHandleByPciBusId(address, handle);
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    (void)handle;
    *index = 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    (void)handle;
    *major = 8;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(void *one, void *other, int kind, int *status) {
    (void)one, (void)other, (void)kind;
    *status = NOT_SUPPORTED;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *handle, int count, Field *fields) {
    (void)handle;
    for (int i = 0; i < count; i++) fields[i].result = NOT_SUPPORTED;
    return SUCCESS;
}

/* PyTorch 2.10 calls this if memory does not suffice, and accepts no refusal. */
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *processes) {
    (void)handle, (void)processes;
    *count = 0;
    return SUCCESS;
}

/* Functions that a driver may refuse. */
#define REFUSED(name) \
    int name(void) { return NOT_SUPPORTED; }
REFUSED(nvmlDeviceGetCurrPcieLinkGeneration)
REFUSED(nvmlDeviceGetCurrPcieLinkWidth)
REFUSED(nvmlDeviceGetGpuFabricInfoV)
REFUSED(nvmlDeviceGetNvLinkCapability)
REFUSED(nvmlDeviceGetNvLinkRemoteDeviceType)
REFUSED(nvmlDeviceGetNvLinkRemotePciInfo)
REFUSED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
REFUSED(nvmlDeviceGetNvLinkState)
REFUSED(nvmlDeviceGetPciInfoExt)
REFUSED(nvmlDeviceGetPciInfo_v3)
REFUSED(nvmlDeviceGetPcieLinkMaxSpeed)
REFUSED(nvmlDeviceGetPlatformInfo)
REFUSED(nvmlSystemGetConfComputeSettings)
REFUSED(nvmlSystemGetConfComputeState)
REFUSED(nvmlSystemGetCudaDriverVersion_v2)
