package main

import (
	"testing"

	"ebb.dev/ebb/wire"
)

// A pod that rests reports that it is asleep, and a request to it is no wake.
func TestOnlyAPodThatIsFrozenSleeps(t *testing.T) {
	for said, c := range map[uint8]struct {
		name               string
		frozen, compressed bool
	}{
		0: {"awake", false, false},
		1: {"warm", false, false}, // or it rests
		2: {"frozen", true, false},
		3: {"compressed", true, true},
		9: {"compressed", true, true}, // or a level that is not known yet
	} {
		stat, err := wire.DecodeStat("", wire.Stat{PodName: "a", Asleep: said}.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if is := depth(stat.Asleep); is.String() != c.name || is >= frozen != c.frozen || is >= compressed != c.compressed {
			t.Errorf("%d is %s, want %+v", said, is, c)
		}
	}
}
