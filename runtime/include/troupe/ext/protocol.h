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
 *   open     optionally: true when the mirror that the last answer named cannot be used
 *            answer: epoch, last committed step, next version to publish, where the state of
 *            that step is ("model", "checkpoint", "mirror"), whether its weights are out already
 *            (as next version - 1), mirror (object or nil), its digest, whether all that was
 *            written behind that state is void (a rollback, or another life of the run),
 *            counters, ledger JSON or nil and publish time as in the answer to the last commit,
 *            whether the stream has ended, with which reason (or nil) and code, restarts of
 *            roles so far, which open of this coordinator it is (1: the first), why
 *   publish  version, step, object, digest
 *   take     step, version
 *            answer, when the batch is there: epoch, array of groups [group, row,
 *              array of members [attempt, object, digest, units,
 *                array of stages [number or nil, object or nil, digest]]]
 *            where a stage's object is a sample with the one tensor "value"
 *   commit   step, array of [group, verdict ("trained", "filtered", "stale", "failed"),
 *            reason or nil, array of digests as the sink itself computed them], whether a
 *            snapshot is wanted; optionally mirror (object or nil) and its digest: the sink's
 *            state after this step, which the coordinator holds until the next commit
 *            answer: array of counters (in the order of troupe_counters), ledger JSON or nil,
 *            milliseconds from the last complete publish to its last receiver's
 *            acknowledgement (or nil), array of [groups by head lag when taken], this step's,
 *            restarts of roles so far
 *   durable  step, digest of the checkpoint
 *   finish   reason, optionally the code that the program is to end with
 *            answer, when nothing is queued or in flight: array of counters
 *
 * Called on the coordinator by anyone
 *   status   answer: JSON text: counters, step, version, lags, waits
 *
 * An answer's status is what ext/stream.h says, with one exception: GONE there is STALE here, and
 * FULL is FAILED with the remedy. Both words belong to the actor layer, which sends a call again
 * when it hears them.
 *
 * The coordinator's config (troupe_stream_spec.config), defaults in brackets: "journal" path
 * [none]; "seed" [1]; "rows"; "data_digest" (hex text) ["0"]; "groups_per_step"; "group_size";
 * "steps" of the whole run [0: unknown]: no group is begun that none of them can take; "resume"
 * [false]: go on from an existing journal; "ledger": path of the checkpoint's ledger.json to go
 * back to [null: step 0]; "life" [1] (here or beside "config"): which life of the node this is;
 * above 1 the journal of the earlier ones is gone on with; "ledgers" [null]: where the ledger of a
 * checkpoint is, with {step} in it: a later life goes back to the newest that the journal calls
 * durable; "lease_s" [600]; "lease_attempts" [5]; "stage_s" [60]; "stage_tries"
 * [3]; "worker_capacity" [64]: samples that one replica of a stage is asked for at a time;
 * "retained_steps" [1000]: that may wait for a durable point; "update_s" [60] and "sink_s" [30]:
 * deadlines of `update` and `retired`; "waste_max" [100 batches]: groups that may end without
 * the sink between two steps before the run fails; "filter" ["none"] or "zero-variance": a group
 * whose members all have the same value of stage 0 ends filtered. */
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

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The coordinator's class, for troupe_stream_class and for the simulator. */
struct troupe_stream_class;
const struct troupe_stream_class *troupe_coordinator(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
