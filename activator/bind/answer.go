package bind

// Answer is how a request ends that no pod answers.
type Answer uint8

// The answers. Those from AnswerBudget to AnswerNoFallback reject a request that cannot wait, or
// any longer.
//
//	answer       status  Retry-After  because
//	Page                              the annotations of the revision have this answer
//	NotWoken                          the same
//	Budget       503     1            the queue drains within seconds, if at all
//	MaxWaiting   503     1            the same, by the revision's own bound
//	MaxWait      503     5            the pods, if there are any, have more to do than they can
//	CannotStart  503     5            somebody has to mend the revision first
//	NoFallback   503     5            the same
//	Deleted      404                  like a revision that never was
//	Untrusted    502                  no pod has a certificate that is believed
//	Stopped      503     1            this process ends; to a client that left, and after a timer, the forwarder's answer goes
const (
	NoAnswer Answer = iota
	AnswerPage
	AnswerNotWoken
	AnswerBudget
	AnswerMaxWaiting
	AnswerMaxWait
	AnswerCannotStart
	AnswerNoFallback
	AnswerDeleted
	AnswerUntrusted
	AnswerStopped
	Answers // how many there are
)

var answers = [Answers]struct {
	name               string
	status, retryAfter int
}{
	{"none", 0, 0},
	{"page", 0, 0},
	{"not_woken", 0, 0},
	{"budget", 503, 1},
	{"max_waiting", 503, 1},
	{"max_wait", 503, 5},
	{"cannot_start", 503, 5},
	{"no_fallback", 503, 5},
	{"deleted", 404, 0},
	{"untrusted", 502, 0},
	{"stopped", 503, 1},
}

// String is the answer's name, as metrics have it.
func (a Answer) String() string { return answers[a].name }

// Status is the status code, 0 if annotations say it.
func (a Answer) Status() int { return answers[a].status }

// RetryAfter is after how many seconds the client may try again, 0 if that is not said.
func (a Answer) RetryAfter() int { return answers[a].retryAfter }
