package backends

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/wire"
)

// A process that has the token of a revision and is none of its pods gets requests of the revision
// for a minute, whatever it says and however often, and then for ten minutes none.
func TestAnAddressThatKubernetesDoesNotListIsBelievedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := Key{"ns", "rev"}
		table := newTable()
		table.SetRevision(key, &Info{UID: "u", Early: true, Timeout: time.Minute})
		sequence := uint64(0)
		say := func(pod string, ready bool) {
			sequence++
			table.Announce(wire.Announcement{Namespace: "ns", Revision: "rev", Pod: pod, Address: address(66), Ready: ready, Sequence: sequence})
		}
		began := time.Now()
		for time.Since(began) < 11*time.Minute {
			pod := "stranger"
			if int(time.Since(began).Seconds())%3 == 0 {
				pod = "another-name"
			}
			ready := time.Since(began)%(7*time.Second) != 0
			say(pod, ready)
			table.Sweep(time.Now())
			used := len(table.Get(key).Snapshot().Pods) > 0
			switch age := time.Since(began); {
			case used && age > announcedFor && age <= distrustedFor:
				t.Fatalf("after %v the stranger still gets requests", age)
			case !used && ready && age > distrustedFor+10*time.Second:
				t.Fatalf("after %v the address is still not believed: a pod may have it now", age)
			}
			time.Sleep(time.Second)
		}
	})
}

// A pod of one revision cannot pose as a pod of another, even with the token of that one.
func TestAPodOfAnotherRevisionIsNotBelieved(t *testing.T) {
	table := newTable()
	victim, attacker := Key{"ns", "victim"}, Key{"other", "attacker"}
	for _, key := range []Key{victim, attacker} {
		table.SetRevision(key, &Info{UID: key.Name, Early: true, Timeout: time.Minute})
	}
	pose := func() bool {
		return table.Announce(wire.Announcement{Namespace: "ns", Revision: "victim", Pod: "p", Ready: true,
			Address: netip.AddrPortFrom(address(66).Addr(), 9999)})
	}
	listed := []Endpoint{{Address: address(66), Pod: "attacker-pod", Ready: true}}
	table.SetSlice(attacker, "a", listed)
	table.SetSlice(attacker, "b", listed) // while addresses move between slices, both have them
	table.SetSlice(attacker, "a", nil)
	if pose() {
		t.Error("a pod of another revision was believed")
	}
	table.SetSlice(attacker, "b", []Endpoint{{Address: address(66), Pod: "attacker-pod", Terminating: true}})
	if !pose() {
		t.Error("the next pod with the address is not believed")
	}
	table.SetSlice(attacker, "b", nil)
	if len(table.ready) != 0 {
		t.Errorf("%d addresses remain", len(table.ready))
	}
}
