/* A stand-in for libnvidia-ml.so.1, so that the real nvidia-ml-py runs without a GPU.
 *
 * FAKE_NVML           scenario: healthy, na, mig, lost, lost_later, unopened, mismatch, mismatch_later, no_permission,
 *                     not_loaded, zero, errors, scrambled, rubbish, hang, hang_init, unknown_init, timeout_init, crash
 * FAKE_NVML_GPUS      number of GPUs, 8 if absent
 * FAKE_NVML_AFTER     device calls after which hang, crash, lost_later and mismatch_later begin, 200 if absent
 * FAKE_NVML_PIDS      compute processes, "gpu:pid gpu:pid"
 * FAKE_NVML_LOG       file that gets one line per call: the function's name and the GPU's index
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, INVALID_ARGUMENT = 2,
    TIMEOUT = 10, GPU_IS_LOST = 15, LIB_RM_VERSION_MISMATCH = 18, UNKNOWN = 999
};
enum { MAX_GPUS = 64, LOST_INDEX = 3, MIG_INDEX = 0 };

typedef char *device_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

static char gpus[MAX_GPUS];
static int calls;

static const char *scenario(void) { const char *name = getenv("FAKE_NVML"); return name ? name : "healthy"; }
static int is(const char *name) { return strcmp(scenario(), name) == 0; }
static int number(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
static int count(void) { int n = is("zero") ? 0 : number("FAKE_NVML_GPUS", 8); return n > MAX_GPUS ? MAX_GPUS : n; }
static int index_of(device_t device) { return (int)(device - gpus); }
static int late(void) { return calls > number("FAKE_NVML_AFTER", 200); }

static void note(const char *function, int index) {
    const char *path = getenv("FAKE_NVML_LOG");
    if (!path) return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0) return;
    dprintf(fd, "%s %d\n", function, index);
    close(fd);
}

static void never_return(void) { for (;;) pause(); }

/* What every call on a device does first: 0, or the error it gives. */
static int enter(const char *function, device_t device) {
    int index = index_of(device);
    note(function, index);
    calls++;
    if (is("hang") && late()) never_return();
    if (is("crash") && late()) raise(SIGSEGV);
    if (is("mismatch_later") && late()) return LIB_RM_VERSION_MISMATCH;
    if (index == LOST_INDEX && (is("lost") || (is("lost_later") && late()))) return GPU_IS_LOST;
    if (is("errors") && index == 1) return UNKNOWN;
    return SUCCESS;
}

/* A call that gives one unsigned number, in most scenarios. */
static int give(const char *function, device_t device, unsigned *out, unsigned value) {
    int error = enter(function, device);
    if (error) return error;
    if (is("na")) return NOT_SUPPORTED;
    *out = is("rubbish") ? 0xffffffffu : value;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    note("nvmlInitWithFlags", -1);
    if (is("hang_init")) never_return();
    if (is("mismatch")) return LIB_RM_VERSION_MISMATCH;
    if (is("unknown_init")) return UNKNOWN;
    if (is("timeout_init")) return TIMEOUT;
    if (is("no_permission")) return NO_PERMISSION;
    if (is("not_loaded")) return DRIVER_NOT_LOADED;
    return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { (void)error; return "Fake Error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "575.00.01"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = (unsigned)count(); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
    note("nvmlDeviceGetHandleByIndex_v2", (int)index);
    if ((int)index >= count()) return INVALID_ARGUMENT;
    if (is("unopened") && index == LOST_INDEX) return NO_PERMISSION;
    if (is("lost") && index == LOST_INDEX) return GPU_IS_LOST;
    *out = gpus + index;
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t device, char *out, unsigned size) {
    int error = enter("nvmlDeviceGetUUID", device);
    if (!error) snprintf(out, size, "GPU-00000000-0000-0000-0000-%012d", index_of(device));
    return error;
}
int nvmlDeviceGetName(device_t device, char *out, unsigned size) {
    int error = enter("nvmlDeviceGetName", device);
    if (!error) snprintf(out, size, is("rubbish") ? "\xff\xfe<b>GPU</b>" : "NVIDIA Fake B200");
    return error;
}
int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *out) {
    int error = enter("nvmlDeviceGetPciInfo_v3", device);
    if (error) return error;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x10 + index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device_t device, unsigned *out) {
    return give("nvmlDeviceGetPowerUsage", device, out, 85000 + 1000 * (unsigned)index_of(device));
}
int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *out) { return give("nvmlDeviceGetEnforcedPowerLimit", device, out, 600000); }
int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *out) {
    if (is("mig") && index_of(device) == MIG_INDEX) { enter("nvmlDeviceGetUtilizationRates", device); return NOT_SUPPORTED; }
    int error = give("nvmlDeviceGetUtilizationRates", device, &out->gpu, 3);
    out->memory = out->gpu;
    return error;
}
int nvmlDeviceGetMemoryInfo(device_t device, memory_t *out) {
    int error = enter("nvmlDeviceGetMemoryInfo", device);
    if (error) return error;
    if (is("na")) return NOT_SUPPORTED;
    out->total = 192ull << 30;
    out->used = is("rubbish") ? ~0ull : 20ull << 30;
    out->free = out->total - out->used;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(device_t device, unsigned type, unsigned *out) { return give("nvmlDeviceGetClockInfo", device, out, type == 1 ? 345 : 2619); }
int nvmlDeviceGetMaxClockInfo(device_t device, unsigned type, unsigned *out) { return give("nvmlDeviceGetMaxClockInfo", device, out, type == 1 ? 1965 : 3996); }
int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *out) { (void)sensor; return give("nvmlDeviceGetTemperature", device, out, 34); }
int nvmlDeviceGetPcieThroughput(device_t device, unsigned counter, unsigned *out) {
    usleep(20000);
    return give("nvmlDeviceGetPcieThroughput", device, out, counter == 0 ? 1200 : 800);
}
int nvmlDeviceGetCurrPcieLinkGeneration(device_t device, unsigned *out) { return give("nvmlDeviceGetCurrPcieLinkGeneration", device, out, 5); }
int nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned *out) { return give("nvmlDeviceGetCurrPcieLinkWidth", device, out, 16); }
int nvmlDeviceGetMaxPcieLinkGeneration(device_t device, unsigned *out) { return give("nvmlDeviceGetMaxPcieLinkGeneration", device, out, 5); }
int nvmlDeviceGetMaxPcieLinkWidth(device_t device, unsigned *out) { return give("nvmlDeviceGetMaxPcieLinkWidth", device, out, 16); }

/* Only the older name, as drivers before R535 have it: the fallback is part of what is tested. */
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *out) {
    int error = enter("nvmlDeviceGetCurrentClocksThrottleReasons", device);
    if (error) return error;
    if (is("na")) return NOT_SUPPORTED;
    *out = is("rubbish") ? ~0ull : 1;
    return SUCCESS;
}
int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
    unsigned on = is("mig") && index_of(device) == MIG_INDEX;
    *pending = on;
    return give("nvmlDeviceGetMigMode", device, current, on);
}
int nvmlDeviceGetP2PStatus(device_t one, device_t other, unsigned what, unsigned *out) {
    (void)what;
    return give("nvmlDeviceGetP2PStatus", one, out, index_of(one) / 4 == index_of(other) / 4 ? 0 : 5);
}
int nvmlDeviceGetTopologyCommonAncestor(device_t one, device_t other, unsigned *out) {
    (void)other;
    return give("nvmlDeviceGetTopologyCommonAncestor", one, out, 50);
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *size, process_t *out) {
    int error = enter("nvmlDeviceGetComputeRunningProcesses_v3", device);
    if (error) return error;
    if (is("na")) return NOT_SUPPORTED;
    const char *text = getenv("FAKE_NVML_PIDS");
    unsigned found = 0;
    for (int gpu, pid, used; text && sscanf(text, " %d:%d%n", &gpu, &pid, &used) == 2; text += used) {
        if (gpu != index_of(device)) continue;
        if (out && found < *size) {
            memset(&out[found], 0, sizeof *out);
            out[found].pid = is("scrambled") ? 0xfffffff0u : (unsigned)pid;
        }
        found++;
    }
    unsigned room = out ? *size : 0;
    *size = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
