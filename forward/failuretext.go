package forward

import (
	"errors"
	"net"
)

// FailureText says for a client why no usable response came from the upstream. It leaves out the
// addresses that an error of the network names: they are the operator's to know.
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
