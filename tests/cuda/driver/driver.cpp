// A CUDA driver without devices: cuDNN, which is told of a device (vendor/cudnn_backend.cpp), looks up these functions
// and gives the driver the kernels that it has compiled.
namespace {

int nothing;  // what handles point to

}  // namespace

extern "C" {

// Before anything else: there is no device.
int cuInit(unsigned) { return 100; }
int cuGetExportTable(const void**, const void*) { return 500; }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorName(int, const char** text) {
  *text = "an error of the driver";
  return 0;
}
int cuGetErrorString(int, const char** text) { return cuGetErrorName(0, text); }
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}
int cuLibraryLoadData(void** library, const void*, void*, void**, unsigned, void*, void**, unsigned) {
  *library = &nothing;
  return 0;
}
int cuLibraryLoadFromFile(void** library, const char*, void*, void**, unsigned, void*, void**, unsigned) {
  *library = &nothing;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &nothing;
  return 0;
}
int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return 0;
}

// Nothing of what follows is called before a kernel is launched or linked, which is not done here.
#define HOLON_REFUSED(name) \
  int name() { return 801; }
HOLON_REFUSED(cuCtxGetCurrent)
HOLON_REFUSED(cuCtxGetLimit)
HOLON_REFUSED(cuCtxPopCurrent)
HOLON_REFUSED(cuCtxPushCurrent)
HOLON_REFUSED(cuStreamGetCtx)
HOLON_REFUSED(cuLinkCreate)
HOLON_REFUSED(cuLinkAddData)
HOLON_REFUSED(cuLinkComplete)
HOLON_REFUSED(cuLinkDestroy)
HOLON_REFUSED(cuLaunchKernel)
HOLON_REFUSED(cuLaunchKernelEx)
HOLON_REFUSED(cuLaunchCooperativeKernel)
HOLON_REFUSED(cuOccupancyMaxPotentialClusterSize)

}  // extern "C"
