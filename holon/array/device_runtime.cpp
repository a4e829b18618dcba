#include "holon/array/device_runtime.h"

#include <atomic>

#include "holon/base/error.h"

namespace holon {

namespace {

std::atomic<void (*)()> further_check{nullptr};
thread_local RecordedDraw* the_draw = nullptr;

[[noreturn]] void fail_incapable(const DeviceRuntime& runtime, const char* what) {
  internal_error(__FILE__, __LINE__, what, "a device whose capabilities say otherwise ({}) was used for {}",
                 runtime.device_count(), what);
}

}  // namespace

Ref<Storage> DeviceRuntime::allocate_pinned(size_t) { fail_incapable(*this, "pinned memory"); }
void DeviceRuntime::copy_to_pinned(int, void*, const void*, size_t, Storage&) {
  fail_incapable(*this, "a copy to pinned memory");
}
void DeviceRuntime::copy_from_pinned(int, void*, const void*, size_t, Storage&) {
  fail_incapable(*this, "a copy from pinned memory");
}
void DeviceRuntime::begin_capture(int, const DeviceGraph*) { fail_incapable(*this, "a recording"); }
std::unique_ptr<DeviceGraph> DeviceRuntime::end_capture(int) { fail_incapable(*this, "a recording"); }

void set_device_check(void (*check)()) { further_check.store(check); }
void run_device_check() {
  if (auto* check = further_check.load(std::memory_order_relaxed)) check();
}

RecordedDrawScope::RecordedDrawScope(RecordedDraw& draw) { the_draw = &draw; }
RecordedDrawScope::~RecordedDrawScope() { the_draw = nullptr; }
RecordedDraw* recorded_draw() { return the_draw; }

Ref<Storage> allocate_storage(size_t size_bytes, Device device) {
  return device.is_host() ? allocate_storage(size_bytes) : device_runtime(device)->allocate(device.index, size_bytes);
}

}  // namespace holon
