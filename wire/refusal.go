package wire

// The refusal protocol between activator and queue-proxy.
//
// Several activators send to the same pods and none knows what the others have sent, so only the
// pod's own limit says whether a slot is free. An activator that would rather try another pod than
// wait sets HeaderNoQueue. A queue-proxy without a free slot then answers at once with status
// RefusedStatus and HeaderRefused, before it reads any of the body, and remembers the caller; when
// a slot becomes free it keeps the slot for the caller that was refused first for at most
// TurnMilliseconds and announces itself to that caller again (an Announcement with SlotFree), so
// that no slot stays idle while an activator holds a request, and no activator can starve another.
const (
	// HeaderNoQueue asks queue-proxy to refuse the request instead of queueing it. Its value is
	// the caller's own address as host:port of its announcement port, to be told of a free slot.
	// A queue-proxy that does not know the header queues the request, which is correct too.
	HeaderNoQueue = "Ebb-No-Queue"
	// HeaderRefused is on a refusal only; its value says why. A response that carries it did not
	// reach the user container, so the same request may be sent to another pod. queue-proxy removes
	// the header from what a user container answers.
	HeaderRefused = "Ebb-Refused"

	// RefusedLimit is the value of HeaderRefused.
	RefusedLimit = "limit"

	// RefusedStatus is the status of a refusal.
	RefusedStatus = 503

	// SlotDeclined is the status with which an activator answers an Announcement with SlotFree when
	// nothing waits for it any more; the slot is then the next caller's.
	SlotDeclined = 410

	// TurnMilliseconds is how long a slot waits for the caller whose turn it is.
	TurnMilliseconds = 5
)
