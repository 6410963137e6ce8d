# The devices. cpu/ has the fused operations, cpu/plain their plain form.
troupe_library(troupe_kernels
  SOURCES
    cpu/device.c
    cpu/plain/rows.c cpu/plain/rope.c cpu/plain/attention.c cpu/plain/lm_head.c cpu/plain/optim.c
    cpu/plain/table.c
  LIBS troupe_runtime m
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/include)
