package forward

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
)

func TestAClientIsNotToldAddresses(t *testing.T) {
	peer := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 8012}
	broken := &net.OpError{Op: "read", Net: "tcp", Source: peer, Addr: peer, Err: syscall.ECONNRESET}
	for what, err := range map[string]error{
		"refused":        &DialError{Addr: peer.String(), Err: &net.OpError{Op: "dial", Net: "tcp", Addr: peer, Err: syscall.ECONNREFUSED}},
		"broken":         broken,
		"broken, deeper": fmt.Errorf("read the response: %w", broken),
	} {
		if text := FailureText(err); text == "" || strings.Contains(text, "10.1.2.3") {
			t.Errorf("%s: the client is told %q", what, text)
		}
	}
	if text := FailureText(errors.New("malformed status line")); text != "malformed status line" {
		t.Errorf("what is wrong with a response is not said: %q", text)
	}
}
