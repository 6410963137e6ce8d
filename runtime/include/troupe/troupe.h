/* troupe: an asynchronous actor runtime for reinforcement-learning post-training. One include for
 * programs; each part also stands alone. */
#ifndef TROUPE_TROUPE_H
#define TROUPE_TROUPE_H

#include <troupe/actor.h>
#include <troupe/app.h>
#include <troupe/args.h>
#include <troupe/graph.h>
#include <troupe/object.h>
#include <troupe/sample.h>
#include <troupe/span.h>
#include <troupe/spawn.h>
#include <troupe/status.h>

#endif
