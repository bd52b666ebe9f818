package wire

// The refusal protocol between activator and queue-proxy.
//
// Several activators send to the same pods, and no activator knows what the others have sent. Only
// the pod's own limit says whether a slot is free. An activator that prefers to try another pod
// sets HeaderNoQueue. A queue-proxy without a free slot then answers at once with status
// RefusedStatus and HeaderRefused, before it reads the body, and remembers the caller.
//
// When a slot becomes free, the queue-proxy keeps it for the caller that was refused first, for at
// most TurnMilliseconds, and sends that caller an Announcement with SlotFree. So no slot is idle
// while an activator holds a request, and no activator can starve another.
const (
	// HeaderNoQueue asks queue-proxy to refuse the request instead of queueing it. Its value is the
	// caller's announcement address as host:port, for the offer of a free slot. A queue-proxy that
	// does not know the header queues the request, which is also correct.
	HeaderNoQueue = "Ebb-No-Queue"
	// HeaderRefused is on a refusal only; its value says why. A response that carries it did not
	// reach the user container, so the same request may be sent to another pod. queue-proxy removes
	// the header from what a user container answers.
	HeaderRefused = "Ebb-Refused"

	// The values of HeaderRefused: the pod has no free slot, it is not a pod of the revision that
	// HeaderRevision names, it sleeps and does not wake in time, or its container is down: nobody
	// listens there, because it has ended or has not started, or it is told to end.
	RefusedLimit    = "limit"
	RefusedRevision = "revision"
	RefusedAsleep   = "asleep"
	RefusedDown     = "down"

	// RefusedStatus is the status of a refusal.
	RefusedStatus = 503

	// SlotDeclined is an activator's answer to an Announcement with SlotFree if no request waits
	// for the slot any more. The next caller then gets the slot.
	SlotDeclined = 410

	// TurnMilliseconds is how long a slot waits for the caller whose turn it is.
	TurnMilliseconds = 5
)
