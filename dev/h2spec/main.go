// Command h2spec runs the cases of github.com/summerwind/h2spec against a server and writes a JUnit
// report. It is a module of its own, because h2spec's dependencies must not become Ebb's.
//
//	h2spec HOST IP:PORT REPORT
//
// HOST is what requests name as :authority. It resolves to IP and nothing else does.
//
// Owns: its connections. Reads: responses. Writes: the report. Never: judges; cases that fail are
// in the report, and only a run that could not finish is an error.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
	"golang.org/x/net/dns/dnsmessage"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "h2spec:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want HOST IP:PORT REPORT, got %q", args)
	}
	address, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	// h2spec connects to the host that it names as :authority.
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			for resolve(server, address.Addr()) == nil {
			}
		}()
		return client, nil
	}}
	_, err = h2spec.Run(&config.Config{Host: args[0], Port: int(address.Port()), Path: "/", Timeout: 2 * time.Second,
		MaxHeaderLen: 4000, Strict: true, JUnitReport: args[2]})
	return err
}

// resolve answers one DNS query over a stream: every name has the address ip.
func resolve(conn net.Conn, ip netip.Addr) error {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	query := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return err
	}
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return err
	}
	m.Response, m.Additionals = true, nil
	for _, q := range m.Questions {
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
				Body: &dnsmessage.AResource{A: ip.As4()}})
		}
	}
	answer, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	return err
}
