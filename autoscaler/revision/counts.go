package revision

import "ebb.dev/ebb/standby"

// Counts are the pods of one revision by state. Lapsed ones are among those not ready.
type Counts struct {
	Ready, NotReady, Pending, Terminating int32
	// Lapsed pods were ready before, so they can still be at long requests.
	Lapsed int32
	// Asleep pods are none of the others. Deep counts them by level.
	Asleep int32
	Deep   [Levels]int32
	// Alone are asleep pods that could be frozen, but have no node agent. Unfrozen are those whose
	// freeze failed; FreezeFailure says why one of them did.
	Alone, Unfrozen int32
	FreezeFailure   string
	// Memory is what a pod asks for in MiB, 0 if it asks for none.
	Memory int32
	// Shrunk are ready pods that still ask for as little as while they slept.
	Shrunk int32
	// Lost are those not ready on nodes that are lost, and those on silent ones that have not
	// started.
	Lost int32
	// Startup is how the pods get more CPU while they start.
	Startup Startup
}

// Startup is how the pods of a revision get more CPU while they start.
type Startup struct {
	// Reason and Message say what keeps a pod from it, or from its own limit after it.
	Reason, Message string
	// Raised: a pod has it.
	Raised bool
}

// Levels is how many levels of standby there are.
const Levels = int(standby.Compressed) + 1

// Running is how many pods count against the scale target's replicas.
func (c Counts) Running() int32 { return c.Ready + c.NotReady + c.Asleep - c.Terminating }
