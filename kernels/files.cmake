# The devices. cpu/ has the fused operations, compiled once for each vector path of the processor
# (cpu/path.h says how), cpu/plain their plain forms.
set(TROUPE_CPU_OPS
  cpu/embed.c cpu/rmsnorm.c cpu/linear.c cpu/gemm.c cpu/qk_norm_rope.c cpu/attention_packed.c
  cpu/attention_paged.c cpu/swiglu.c cpu/lm_head.c cpu/sample.c cpu/adamw.c cpu/flat.c cpu/table.c)

# troupe_cpu_path(NAME TILES FLAGS...): the operations for one path, with its file of GEMM tiles; the object
# files join troupe_kernels.
function(troupe_cpu_path path tiles)
  add_library(troupe_cpu_${path} OBJECT ${TROUPE_CPU_OPS} ${tiles})
  target_link_libraries(troupe_cpu_${path} PRIVATE troupe_flags troupe_runtime)
  target_compile_options(troupe_cpu_${path} PRIVATE ${ARGN})
  target_compile_definitions(troupe_cpu_${path} PRIVATE
    TR_PATH=${path} TR_VECTOR="cpu/vector_${path}.h")
  target_include_directories(troupe_cpu_${path} PRIVATE
    ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/include)
endfunction()

if(TROUPE_SANITIZE)
  # Sixteen checked array accesses for each lane operation, inlined, would take minutes to compile.
  troupe_cpu_path(scalar cpu/gemm_scalar.c -fno-inline)
else()
  troupe_cpu_path(scalar cpu/gemm_scalar.c -O3)
endif()
set(TROUPE_CPU_PATHS $<TARGET_OBJECTS:troupe_cpu_scalar>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  troupe_cpu_path(avx2 cpu/gemm_avx2.c -O3 -mavx2 -mfma)
  # GCC 12 takes the "undefined" operands of its own AVX-512 header for a mistake (its bug 105593).
  troupe_cpu_path(avx512 cpu/gemm_avx512.c -O3 -mavx512f -mfma
    $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  list(APPEND TROUPE_CPU_PATHS
    $<TARGET_OBJECTS:troupe_cpu_avx2> $<TARGET_OBJECTS:troupe_cpu_avx512> cpu/paths_x86.c)
else()
  list(APPEND TROUPE_CPU_PATHS cpu/paths_generic.c)
endif()

troupe_library(troupe_kernels
  SOURCES
    device.c cuda/load.c cpu/device.c cpu/pool.c cpu/rope_table.c ${TROUPE_CPU_PATHS}
    cpu/plain/rows.c cpu/plain/rope.c cpu/plain/attention.c cpu/plain/lm_head.c cpu/plain/optim.c
    cpu/plain/table.c
  LIBS troupe_runtime m ${CMAKE_DL_LIBS}
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/include)

add_subdirectory(cuda)
