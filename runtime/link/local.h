/* What the Unix link needs of the in-process link beyond its table, so that it can sleep in a poll
 * of its own. */
#ifndef TR_LINK_LOCAL_H
#define TR_LINK_LOCAL_H

#include <troupe/ext/link.h>
#include <troupe/ext/thread.h>

/* The wake-up of an endpoint; lives until nobody can signal it any more. */
tr_wake *tr_local_wake(troupe_endpoint *at);
/* There is something to poll. The endpoint's thread. */
bool tr_local_pending(const troupe_endpoint *at);

#endif
