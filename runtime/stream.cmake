# The stream: pure machines, their journal. The coordinator that drives them is a class of its own.
troupe_library(troupe_stream
  SOURCES
    stream/admission.c stream/bound.c stream/permute.c stream/ledger.c
    stream/stream.c stream/group.c stream/lease.c stream/stage.c stream/order.c stream/take.c
    stream/epoch.c stream/weights.c
    stream/record.c stream/journal.c stream/journal_scan.c
    stream/coordinator.c stream/coordinator_config.c stream/coordinator_source.c
    stream/coordinator_stage.c stream/coordinator_open.c stream/coordinator_sink.c stream/coordinator_status.c
  LIBS troupe_runtime PkgConfig::JANSSON)
