package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"
)

// tap sees the packets of this machine's network that its pods are in, with the time at which the
// kernel had each. It is the clock that a function in a pod of this machine reads, too.
type tap struct {
	socket int
	done   chan struct{}
	seen   []packet // by read, until done
}

// packet is one that carries bytes of a TCP connection.
type packet struct {
	at       time.Time
	from, to netip.AddrPort
}

// between returns the interface of this machine through which it reaches a pod on it.
func between(pod netip.Addr) (*net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	for i := range all {
		addresses, err := all[i].Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, address := range addresses {
			if network, ok := address.(*net.IPNet); ok && network.Contains(pod.AsSlice()) && all[i].Flags&net.FlagLoopback == 0 {
				return &all[i], nil
			}
		}
	}
	return nil, fmt.Errorf("no interface here leads to the pod's address %s: is its node this machine?", pod)
}

// listen begins to see the packets of an interface. It needs the capabilities
// NET_RAW and NET_ADMIN.
func listen(on *net.Interface) (*tap, error) {
	// A socket for IP alone would not see the packets that leave.
	every := binary.NativeEndian.AppendUint16(nil, syscall.ETH_P_ALL)
	order := binary.BigEndian.Uint16(every) // packet(7): in network byte order
	socket, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, int(order))
	if err != nil {
		return nil, fmt.Errorf("open a socket that sees packets: %w", err)
	}
	t := &tap{socket: socket, done: make(chan struct{})}
	const room = 16 << 20 // bytes of packets, while this process gets no CPU
	err = errors.Join(
		syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, room),
		syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1),
		syscall.SetsockoptTimeval(socket, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Usec: 100_000}),
		syscall.Bind(socket, &syscall.SockaddrLinklayer{Protocol: order, Ifindex: on.Index}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("see the packets of %s: %w", on.Name, err), syscall.Close(socket))
	}
	return t, nil
}

// read keeps packets until stopped is closed, and those that came before.
func (t *tap) read(stopped <-chan struct{}) {
	defer close(t.done)
	buffer, control := make([]byte, 2048), make([]byte, 128)
	var end time.Time
	for end.IsZero() || time.Now().Before(end) {
		select {
		case <-stopped:
			stopped, end = nil, time.Now().Add(300*time.Millisecond)
		default:
		}
		n, controls, _, _, err := syscall.Recvmsg(t.socket, buffer, control, 0)
		if err != nil {
			continue // nothing came for a tenth of a second
		}
		p, ok := parsePacket(buffer[:n])
		if !ok {
			continue
		}
		if p.at, ok = stampOf(control[:controls]); ok {
			t.seen = append(t.seen, p)
		}
	}
}

// stampOf returns the time in a packet's control message.
func stampOf(control []byte) (time.Time, bool) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, false
	}
	for _, m := range messages {
		if m.Header.Level == syscall.SOL_SOCKET && m.Header.Type == syscall.SO_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(syscall.Timespec{})) {
			at := (*syscall.Timespec)(unsafe.Pointer(&m.Data[0]))
			return time.Unix(at.Unix()), true
		}
	}
	return time.Time{}, false
}

// parsePacket reads the addresses of an IPv4 packet that carries bytes of a TCP connection (RFC
// 791, RFC 9293). Of a truncated packet, the length in its head counts.
func parsePacket(data []byte) (packet, bool) {
	const leastIP, leastTCP, tcp = 20, 20, 6
	if len(data) < leastIP || data[0]>>4 != 4 || data[9] != tcp {
		return packet{}, false
	}
	head, whole := int(data[0]&15)*4, int(binary.BigEndian.Uint16(data[2:]))
	if head < leastIP || len(data) < head+leastTCP {
		return packet{}, false
	}
	segment := data[head:]
	if offset := int(segment[12]>>4) * 4; whole <= head+offset {
		return packet{}, false // it only acknowledges
	}
	address := func(at []byte, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(at)), binary.BigEndian.Uint16(port))
	}
	return packet{from: address(data[12:16], segment[0:2]), to: address(data[16:20], segment[2:4])}, true
}

// exchange is one request on a connection, as the network saw it.
type exchange struct{ in, out time.Time }

// exchanges pairs the first packet of each request from a client with the first of its response.
func exchanges(seen []packet, client netip.AddrPort) (all []exchange) {
	var in time.Time
	for _, p := range seen {
		switch {
		case p.from == client && in.IsZero():
			in = p.at
		case p.to == client && !in.IsZero():
			all = append(all, exchange{in, p.at})
			in = time.Time{}
		}
	}
	return all
}

// around returns the exchange in which a function worked, for each of its works that has one. A
// busy machine may lose packets.
func around(works, seen []exchange) (found [][2]exchange) {
	for _, w := range works {
		for len(seen) > 0 && seen[0].out.Before(w.out) {
			seen = seen[1:]
		}
		if len(seen) > 0 && seen[0].in.Before(w.in) {
			found = append(found, [2]exchange{w, seen[0]})
		}
	}
	return found
}
