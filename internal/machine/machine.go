// Package machine has what the pure state machines share.
//
// Owns: how a set of effects is spelled. Reads and writes: nothing. Never: imports more than the
// standard library, so that pure packages may import it.
package machine

import "strings"

// Words spells a set of bits, the lowest first, by their names.
func Words[S ~uint16 | ~uint32](set S, names []string) string {
	var words []string
	for i, name := range names {
		if set&(1<<i) != 0 {
			words = append(words, name)
		}
	}
	return strings.Join(words, " ")
}
