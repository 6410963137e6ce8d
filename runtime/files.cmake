# The runtime's core, in include order: a folder sees only what stands above it.
troupe_library(troupe_runtime
  SOURCES
    base/status.c base/assert.c base/alloc.c base/random.c base/hash.c base/crc32c.c base/half.c
    base/buf.c base/text.c base/options.c
    sys/posix.c sys/thread.c sys/wake.c sys/signals.c sys/child.c sys/child_start.c sys/spawn.c sys/lines.c
    sys/procfs.c sys/cgroup.c sys/sweep.c sys/worker.c sys/death.c
    sys/module.c sys/logfile.c sys/runfolder.c sys/share.c
    mem/segment.c mem/tensor.c
    wire/writer.c wire/reader.c wire/frame.c
    link/local.c link/unix_packet.c link/unix_name.c link/unix_out.c link/unix_in.c link/unix.c
    loop/timers.c loop/mailbox.c loop/loop.c
    actor/directory.c actor/seen.c actor/class.c actor/args.c actor/values.c actor/open.c
    actor/call.c actor/chain.c actor/cancel.c actor/stream_in.c actor/stream_out.c
    actor/arrive.c actor/answer.c actor/actor.c actor/self.c actor/names.c actor/waits.c
    actor/spawn.c actor/checkpoint.c actor/driver.c actor/host.c
    store/marks.c store/ledger.c store/place.c store/slab.c store/commit.c store/hold.c store/object.c
    store/reclaim.c store/inspect.c store/store.c store/tensor_object.c store/sample_seal.c
    store/sample_read.c store/strand.c
    node/graph.c node/check.c node/draw.c node/plan.c node/plan_wire.c node/layout.c
    node/restart.c node/hosts.c node/agent.c node/controller.c node/controller_news.c
    node/controller_death.c node/controller_end.c node/controller_ask.c node/guest.c node/names.c node/kept.c node/run.c
    node/birth.c node/output.c node/launcher.c node/process.c node/worker.c node/node.c
    node/driver.c node/pulse.c node/describe.c node/main.c
    sim/events.c sim/link.c sim/sys.c sim/faults.c sim/world.c
  LIBS PkgConfig::JANSSON PkgConfig::XXHASH ${TROUPE_MSGPACK_LIB} Threads::Threads m
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/include)
