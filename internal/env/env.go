// Package env reads the environment of a process. Who reads a variable says its default and what it
// is for, and docs/reference/environment.md is made from that.
//
// Owns: what is wrong with the variables that were read. Reads: the environment. Never: knows a
// variable.
package env

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// Reader reads variables. It keeps what is wrong with them, so that one start tells all of it.
type Reader struct {
	get func(string) string
	err error
}

// New returns a Reader of an environment such as os.Getenv.
func New(get func(string) string) *Reader { return &Reader{get: get} }

// Err says what is wrong with the variables that were read, each with its name.
func (r *Reader) Err() error { return r.err }

// Refuse notes what is wrong with a variable; err begins with its name.
func (r *Reader) Refuse(err error) { r.err = errors.Join(r.err, fmt.Errorf("environment %w", err)) }

// Text returns a variable, or usual if it is not set.
func (r *Reader) Text(name, usual, use string) string { return cmp.Or(r.get(name), usual) }

// Needed returns a variable that must be set.
func (r *Reader) Needed(name, use string) string {
	text := r.get(name)
	if text == "" {
		r.Refuse(fmt.Errorf("%s is not set: %s", name, use))
	}
	return text
}

// Number returns a number from least to most, or usual if the variable is not set.
func (r *Reader) Number(name string, usual, least, most int64, use string) int64 {
	text := r.get(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		r.Refuse(fmt.Errorf("%s is %q, want a number from %d to %d", name, text, least, most))
	}
	return n
}

// Port returns the number of a port, or usual if the variable is not set.
func (r *Reader) Port(name string, usual int, use string) int {
	return int(r.Number(name, int64(usual), 1, 65535, use))
}

// IP returns an address, or none if the variable is not set.
func (r *Reader) IP(name, use string) netip.Addr {
	text := r.get(name)
	if text == "" {
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		r.Refuse(fmt.Errorf("%s: %w", name, err))
	}
	return ip
}

// NeededIP returns an address that must be set.
func (r *Reader) NeededIP(name, use string) netip.Addr {
	r.Needed(name, use)
	return r.IP(name, use)
}
