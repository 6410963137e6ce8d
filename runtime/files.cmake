# The runtime's core, in include order: a folder sees only what stands above it.
troupe_library(troupe_runtime
  SOURCES
    base/status.c base/assert.c base/alloc.c base/random.c base/hash.c base/crc32c.c base/half.c
    base/buf.c base/text.c
    sys/posix.c sys/thread.c sys/wake.c
    wire/writer.c wire/reader.c
  LIBS PkgConfig::JANSSON PkgConfig::XXHASH ${TROUPE_MSGPACK_LIB} Threads::Threads m
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/include)
