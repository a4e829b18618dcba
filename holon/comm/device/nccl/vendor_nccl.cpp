// NCCL, loaded when ranks on devices first communicate, so that machines without it need none. Builds without its
// header have no calls of it: data between devices then goes through the hosts' memory.
#include "holon/comm/device/nccl/vendor_nccl.h"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>

#include "holon/array/vendor_library.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::comm::nccl {

namespace {

struct Library {
  std::string missing;
#define HOLON_NCCL_CALLS(call)                                                                                      \
  call(GetUniqueId) call(CommInitRank) call(CommGetAsyncError) call(CommAbort) call(GetErrorString) call(AllReduce) \
      call(ReduceScatter) call(AllGather) call(Broadcast) call(Send) call(Recv) call(GroupStart) call(GroupEnd)
#define HOLON_NCCL_POINTER(name) decltype(&nccl##name) name = nullptr;
  HOLON_NCCL_CALLS(HOLON_NCCL_POINTER)

  Library() {
    const VendorLibrary found = vendor_library("libnccl.so.2");
    void* module = found.handle;
    if (!module) {
      missing = found.missing;
      return;
    }
#define HOLON_NCCL_FIND(name)                                           \
  name = reinterpret_cast<decltype(name)>(dlsym(module, "nccl" #name)); \
  if (!name) missing = "libnccl.so.2 has no nccl" #name "; a newer NCCL is needed";
    HOLON_NCCL_CALLS(HOLON_NCCL_FIND)
  }
};

const Library& library() {
  static const auto* l = new Library;
  return *l;
}

ncclComm_t comm_of(Handle h) { return static_cast<ncclComm_t>(h); }

std::string words(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  return fmt::format("{} reports: {}", call, library().GetErrorString(result));
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8: return ncclUint8;
    case DType::kInt8: return ncclInt8;
    case DType::kInt32: return ncclInt32;
    case DType::kInt64: return ncclInt64;
    case DType::kFloat16: return ncclFloat16;
    case DType::kBFloat16: return ncclBfloat16;
    case DType::kFloat32: return ncclFloat32;
    case DType::kFloat64: return ncclFloat64;
    default: return ncclUint8;  // float8, which is moved and never added up
  }
}

// bools are 0 and 1: the larger is "or".
ncclRedOp_t sum_of(DType dtype) { return dtype == DType::kBool ? ncclMax : ncclSum; }

}  // namespace

std::string missing() { return library().missing; }

std::string identity(int device_index) {
  char text[32] = "";
  if (cudaDeviceGetPCIBusId(text, sizeof text, device_index) != cudaSuccess) return std::to_string(device_index);
  return text;
}

void make_id(std::byte* id) {
  static_assert(sizeof(ncclUniqueId) == DeviceCommunicatorFactory::kIdBytes);
  ncclUniqueId unique;
  if (const std::string error = words(library().GetUniqueId(&unique), "ncclGetUniqueId"); !error.empty())
    fail_runtime("cannot create a communicator of cuda devices: {}.", error);
  std::memcpy(id, &unique, sizeof unique);
}

Handle start(std::span<const int> ranks, int index, const std::byte* id) {
  ncclUniqueId unique;
  std::memcpy(&unique, id, sizeof unique);
  ncclComm_t comm = nullptr;
  const std::string error =
      words(library().CommInitRank(&comm, static_cast<int>(ranks.size()), unique, index), "ncclCommInitRank");
  if (!error.empty())
    fail_runtime("cannot create a communicator of {} cuda devices: {}. NCCL_DEBUG=WARN prints more.", ranks.size(),
                 error);
  return comm;
}

std::string all_reduce(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return words(library().AllReduce(in, out, count, type_of(dtype), sum_of(dtype), comm_of(h), stream), "ncclAllReduce");
}

std::string reduce_scatter(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return words(library().ReduceScatter(in, out, count, type_of(dtype), sum_of(dtype), comm_of(h), stream),
               "ncclReduceScatter");
}

std::string all_gather(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return words(library().AllGather(in, out, count * size_bytes(dtype), ncclUint8, comm_of(h), stream), "ncclAllGather");
}

std::string broadcast(Handle h, void* data, size_t bytes, int root_index, cudaStream_t stream) {
  return words(library().Broadcast(data, data, bytes, ncclUint8, root_index, comm_of(h), stream), "ncclBroadcast");
}

std::string exchange(Handle h, std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                     cudaStream_t stream) {
  if (sends.empty() && receives.empty()) return {};
  std::string error = words(library().GroupStart(), "ncclGroupStart");
  if (!error.empty()) return error;
  for (const DeviceMessage& m : sends)
    if (error.empty())
      error = words(library().Send(m.data, m.bytes, ncclUint8, m.peer, comm_of(h), stream), "ncclSend");
  for (const DeviceMessage& m : receives)
    if (error.empty())
      error = words(library().Recv(m.data, m.bytes, ncclUint8, m.peer, comm_of(h), stream), "ncclRecv");
  // A group that was begun is ended, whatever is wrong in it.
  const std::string end = words(library().GroupEnd(), "ncclGroupEnd");
  return error.empty() ? end : error;
}

std::string send(Handle h, const void* data, size_t bytes, int peer, cudaStream_t stream) {
  return words(library().Send(data, bytes, ncclUint8, peer, comm_of(h), stream), "ncclSend");
}

std::string receive(Handle h, void* data, size_t bytes, int peer, cudaStream_t stream) {
  return words(library().Recv(data, bytes, ncclUint8, peer, comm_of(h), stream), "ncclRecv");
}

std::string trouble(Handle h) {
  ncclResult_t result = ncclSuccess;
  const std::string error = words(library().CommGetAsyncError(comm_of(h), &result), "ncclCommGetAsyncError");
  return error.empty() ? words(result, "NCCL") : error;
}

void abort(Handle h) { library().CommAbort(comm_of(h)); }

}  // namespace holon::comm::nccl

#else

namespace holon::comm::nccl {

namespace {
const std::string kMissing = "this build has no NCCL, since there was no nccl.h: ./dev build --cuda gets it";
}

std::string missing() { return kMissing; }
std::string identity(int) { return {}; }
void make_id(std::byte*) {}
Handle start(std::span<const int>, int, const std::byte*) { return nullptr; }
std::string all_reduce(Handle, const void*, void*, size_t, DType, cudaStream_t) { return kMissing; }
std::string reduce_scatter(Handle, const void*, void*, size_t, DType, cudaStream_t) { return kMissing; }
std::string all_gather(Handle, const void*, void*, size_t, DType, cudaStream_t) { return kMissing; }
std::string broadcast(Handle, void*, size_t, int, cudaStream_t) { return kMissing; }
std::string exchange(Handle, std::span<const DeviceMessage>, std::span<const DeviceMessage>, cudaStream_t) {
  return kMissing;
}
std::string send(Handle, const void*, size_t, int, cudaStream_t) { return kMissing; }
std::string receive(Handle, void*, size_t, int, cudaStream_t) { return kMissing; }
std::string trouble(Handle) { return kMissing; }
void abort(Handle) {}

}  // namespace holon::comm::nccl

#endif
