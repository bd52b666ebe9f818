package forward

import (
	"errors"
	"net"
)

// FailureText tells a client why there is no usable response from the upstream. It leaves out the
// addresses in network errors, which are not for clients.
func FailureText(err error) string {
	var dial *DialError
	if errors.As(err, &dial) {
		return "the upstream does not accept connections"
	}
	var network *net.OpError
	if errors.As(err, &network) {
		return "the connection to the upstream failed"
	}
	return err.Error()
}
