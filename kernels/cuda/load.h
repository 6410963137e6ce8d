/* Finds the shared object of a kind of device and opens a device with it. Private. */
#ifndef TR_KERNELS_CUDA_LOAD_H
#define TR_KERNELS_CUDA_LOAD_H

#include <troupe/kernels.h>

/* Opens `name` of `kind` with libtroupe_KIND.so, as ext/device.h says. UNSUPPORTED when no folder
 * has it, or the one found is of another version. */
troupe_status tr_module_open(const char *kind, const char *name,
    const troupe_device_options *options, troupe_device **out, troupe_error *err) TROUPE_MUST_USE;

#endif
