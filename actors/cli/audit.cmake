# `troupe audit`, apart from the other commands: it must share no code with what it audits.
troupe_library(troupe_audit
  SOURCES
    audit.c audit_record.c audit_file.c audit_ledger.c audit_step.c audit_epoch.c audit_lines.c
    audit_checkpoint.c audit_beside.c audit_metrics.c
  LIBS troupe_runtime PkgConfig::JANSSON m)
target_include_directories(troupe_audit PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/..)
