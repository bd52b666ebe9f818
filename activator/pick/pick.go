// Package pick chooses the pod that a request goes to.
//
// Owns: the load balancing policies of the activator. Reads: the view that the caller
// gives. Writes: nothing. Never: keeps state, reads a clock, draws random numbers, or blocks; the
// simulator runs the same code.
package pick

// State is what the caller knows of a pod beyond its own requests there.
type State uint8

const (
	// Open: the pod may be chosen.
	Open State = iota
	// Far: it may, too, but it is in another zone: where the traffic is paid for, and takes longer.
	Far
	// Full: the pod has just refused a request because its own limit is reached by requests of
	// others.
	Full
	// Asleep: the pod sleeps and wakes for a request. It is chosen only when no other pod has a
	// free slot.
	Asleep
	// Suspect: the pod has just refused a connection. It is chosen only when every pod is suspect,
	// so that a failed dial never leaves a revision without any pod.
	Suspect
	// Resting: a connection failed so recently that trying again would only spin. It is not chosen.
	Resting
)

// Pods is a view of the pods of one revision in address order.
type Pods interface {
	Len() int
	// InFlight is how many requests the caller has at pod i now.
	InFlight(i int) int
	State(i int) State
}

// Reason says by which rule a pod was chosen, or why none was.
type Reason uint8

const (
	NoPods     Reason = iota // there is no pod
	NoSlot                   // every pod has as many requests as it may have, or rests
	LessOfTwo                // no limit: the less loaded of two random pods
	FirstFree                // small limit: the first in address order with a free slot
	RoundRobin               // larger limit: the next with a free slot
	Woken                    // every pod that is awake is full: the first that sleeps
	LastResort               // every pod is suspect: one of them nevertheless
)

// firstFreeLimit is the largest limit under which pods are filled in address order: with so few
// slots each, packing keeps the last pods idle and lets them go.
const firstFreeLimit = 3

// Choose returns the index of the pod for the next request, or -1.
//
//	limit    policy                                   pod is eligible when
//	0        least in flight of two random choices    open, far or full
//	1..3     first in address order                   open or far, and in flight < limit
//	> 3      round robin from cursor                  open or far, and in flight < limit
//
// With a limit, an open pod goes before one that is far; without, only if both have as much in
// flight: a pod that takes any number has no slot that is free, and so nearness would cost a queue.
// Without an eligible pod, the first pod in order that is asleep is chosen. When no pod is open,
// full or asleep, all being suspect, the same policy runs over the suspects. cursor is
// where round robin begins (the caller passes the index after the last choice), random is any 64
// random bits.
func Choose(pods Pods, limit, cursor int, random uint64) (int, Reason) {
	n := pods.Len()
	if n == 0 {
		return -1, NoPods
	}
	if limit <= 0 {
		return chooseUnlimited(pods, n, random)
	}
	start, reason := 0, FirstFree
	if limit > firstFreeLimit {
		start, reason = wrap(cursor, n), RoundRobin
	}
	suspect, sleeper, far, alive := -1, -1, -1, false
	for k := range n {
		i := start + k
		if i >= n {
			i -= n
		}
		switch state := pods.State(i); {
		case state == Suspect:
			if suspect < 0 && pods.InFlight(i) < limit {
				suspect = i
			}
		case state == Resting:
		case state == Asleep && pods.InFlight(i) < limit:
			if sleeper < 0 {
				sleeper = i
			}
		case state == Open && pods.InFlight(i) < limit:
			return i, reason
		case state == Far && pods.InFlight(i) < limit:
			if far < 0 {
				far = i
			}
		default:
			alive = true
		}
	}
	if far >= 0 {
		return far, reason
	}
	if sleeper >= 0 {
		return sleeper, Woken
	}
	// A live pod that is merely busy is worth waiting for; the way to a suspect may cost a dial
	// timeout.
	if alive || suspect < 0 {
		return -1, NoSlot
	}
	return suspect, LastResort
}

// chooseUnlimited draws two different pods and takes the one with less in flight. Without a limit
// no pod is ever full, so the state Full counts as open.
func chooseUnlimited(pods Pods, n int, random uint64) (int, Reason) {
	first := int(uint64(uint32(random)) % uint64(n))
	second := first
	if n > 1 {
		if second = int((random >> 32) % uint64(n-1)); second >= first {
			second++
		}
	}
	one, two := pods.State(first), pods.State(second)
	a, b := one < Asleep, two < Asleep
	switch {
	case a && b:
		if x, y := pods.InFlight(first), pods.InFlight(second); y < x || y == x && one == Far && two != Far {
			return second, LessOfTwo
		}
		return first, LessOfTwo
	case a:
		return first, LessOfTwo
	case b:
		return second, LessOfTwo
	}
	suspect, sleeper := -1, -1
	for k := range n {
		i := wrap(first+k, n)
		switch state := pods.State(i); {
		case state < Asleep:
			return i, LessOfTwo
		case state == Asleep && sleeper < 0:
			sleeper = i
		case state == Suspect && suspect < 0:
			suspect = i
		}
	}
	switch {
	case sleeper >= 0:
		return sleeper, Woken
	case suspect < 0:
		return -1, NoSlot
	}
	return suspect, LastResort
}

func wrap(i, n int) int {
	i %= n
	if i < 0 {
		i += n
	}
	return i
}
