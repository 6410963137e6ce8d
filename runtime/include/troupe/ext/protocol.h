/* What a stream's coordinator and the roles around it say to each other: method names and the
 * order of their values. The coordinator is an actor that goes by the stream's name (a role's
 * config says which). Every message is idempotent and may be sent again; statuses mean what
 * ext/stream.h says. Objects are named by handle: the sender keeps its hold until the answer is
 * there, a receiver that wants the object takes a hold of its own before it answers.
 *
 * Called on a source (a role that makes samples, and receives weights)
 *   lease    epoch, group, attempt, row, members (set of bits), size of a group
 *            answer: OK accepted; AGAIN no room
 *   cancel   epoch, group, attempt
 *            answer: OK
 *   update   version, step, object (flat fp32 parameters), digest
 *            answer: OK, once the source samples with it
 *
 * Called on a stage (any role whose class has the method)
 *   score    sample (object), row, epoch, group, member, attempt
 *            answer: a number, or nil; then optionally a tensor by value. An error status is no
 *            number: it is tried again, then the whole group fails.
 *
 * Called on the sink
 *   retired  epoch, group, step (last committed), row, status ("failed", "stale", "filtered"),
 *            reason, array of [member, attempt, object or nil,
 *                              array of stage values (number or nil)]
 *            answer: OK, after which the objects are released. For groups that end without the
 *            sink's verdict.
 *
 * Called on the coordinator by a source
 *   source   capacity (members at a time); once the source can work, and again after a restart
 *   sealed   epoch, group, member, attempt, object, digest, ids digest, units, version held,
 *            array of [unit, version]
 *            answer: OK the coordinator holds the object now; any other status: it does not
 *            want it
 *   failed   epoch, group, member, attempt, reason
 *
 * Called on the coordinator by the sink
 *   open     (nothing)
 *            answer: epoch, last committed step, next version to publish
 *   publish  version, step, object, digest
 *   take     step, version
 *            answer, when the batch is there: epoch, array of groups [group, row,
 *              array of members [attempt, object, digest, units,
 *                array of stages [number or nil, object or nil, digest]]]
 *            where a stage's object is a sample with the one tensor "value"
 *   commit   step, array of [group, verdict ("trained", "filtered", "stale", "failed"),
 *            reason or nil, array of digests as the sink itself computed them], whether a
 *            snapshot is wanted
 *            answer: array of counters (in the order of troupe_counters), ledger JSON or nil,
 *            milliseconds from the last complete publish to its last receiver's
 *            acknowledgement (or nil), array of [groups by head lag when taken], this step's
 *   durable  step, digest of the checkpoint
 *   finish   reason
 *            answer, when nothing is queued or in flight: array of counters
 *
 * Called on the coordinator by anyone
 *   status   answer: JSON text: counters, step, version, lags, waits
 *
 * The coordinator's config (troupe_stream_spec.config): "journal" path; "resume" whether it goes
 * on; "seed"; "rows"; "data_digest" (hex text); "groups_per_step"; "group_size"; "ledger" (path of
 * the checkpoint's ledger.json, or null); "steps" (of the whole run; 0: unknown); "lease_s";
 * "stage_s"; "stage_tries"; "lease_attempts"; "retained_steps"; "filter" ("none", "zero-variance":
 * all members' values of stage 0 are equal). */
#ifndef TROUPE_EXT_PROTOCOL_H
#define TROUPE_EXT_PROTOCOL_H

#define TROUPE_METHOD_LEASE   "lease"
#define TROUPE_METHOD_CANCEL  "cancel"
#define TROUPE_METHOD_UPDATE  "update"
#define TROUPE_METHOD_SCORE   "score"
#define TROUPE_METHOD_RETIRED "retired"
#define TROUPE_METHOD_SOURCE  "source"
#define TROUPE_METHOD_SEALED  "sealed"
#define TROUPE_METHOD_FAILED  "failed"
#define TROUPE_METHOD_OPEN    "open"
#define TROUPE_METHOD_PUBLISH "publish"
#define TROUPE_METHOD_TAKE    "take"
#define TROUPE_METHOD_COMMIT  "commit"
#define TROUPE_METHOD_DURABLE "durable"
#define TROUPE_METHOD_FINISH  "finish"
#define TROUPE_METHOD_STATUS  "status"

/* The coordinator's class, for troupe_stream_class and for the simulator. */
struct troupe_stream_class;
const struct troupe_stream_class *troupe_coordinator(void);

#endif
