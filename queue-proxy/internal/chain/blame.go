package chain

import (
	"ebb.dev/ebb/forward"
)

// blame is what a request says of the program.
type blame uint8

const (
	nobody  blame = iota // nothing
	good                 // it answered
	left                 // only that it had not answered when its client left
	program              // it failed
)

// blame says whom to blame for the end of a request, for the judge of rollouts
// (docs/decisions/0019):
//
//	not sent to the container: a probe, a refusal, the queue, its deadline  nobody
//	the client's body is broken                                             nobody
//	the client, or the gateway, did not wait any longer                     left
//	completed below 500, and with no gRPC status of faulty                  good
//	completed otherwise, or the program says so (wire.HeaderFailed)         program
//	a timer fired                                                           program
//	no or a broken response                                                 program
//	the same, because of us                                                 nobody
//	no connection to the container                                          program
//	the same, while the pod ends, or an activator asks another pod          nobody
//
// An activator asks again and again, here and elsewhere. One request of a client must not count for
// many.
func (c *Chain) blame(res *forward.Result, p *pass) blame {
	switch {
	case p.sent.IsZero(), p.elsewhere, p.down && c.Draining():
		return nobody
	case p.down:
		return program
	}
	switch res.Cause {
	case forward.Completed:
		if res.Status >= 500 || faulty(res.GRPC) || res.Marked {
			return program
		}
		return good
	case forward.TimedOut:
		return program
	case forward.ClientGone:
		return left
	case forward.UpstreamFailed:
		if forward.IsOurs(res.Err) {
			return nobody
		}
		return program
	}
	return nobody
}

// The statuses of gRPC that OpenTelemetry calls errors of the server.
const (
	grpcUnknown          = 2
	grpcDeadlineExceeded = 4
	grpcUnimplemented    = 12
	grpcInternal         = 13
	grpcUnavailable      = 14
	grpcDataLoss         = 15
)

func faulty(status uint8) bool {
	switch status {
	case grpcUnknown, grpcDeadlineExceeded, grpcUnimplemented, grpcInternal, grpcUnavailable, grpcDataLoss:
		return true
	}
	return false
}
