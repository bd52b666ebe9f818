package revision

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"
	"time"
)

var numbers = regexp.MustCompile(`-?\d+(\.\d+)?`)

// Whatever an earlier process leaves, and whatever its clock says: deciding goes on, about a number
// of pods that can be. Two numbers of a state are changed.
func FuzzAStateOfAnotherProcess(f *testing.F) {
	a := newVillage(f, func(c *Config) { c.Adaptive = true })
	for range 3 {
		a.load = 3
		a.run(5 * time.Second)
		a.load = 0
		a.run(time.Minute)
	}
	state, err := json.Marshal(a.Export(a.now))
	if err != nil {
		f.Fatal(err)
	}
	for i := range numbers.FindAllIndex(state, -1) {
		f.Add(uint16(i), int64(-1), uint16(0), 1e9, int64(0))
	}
	f.Fuzz(func(t *testing.T, first uint16, x int64, second uint16, y float64, behind int64) {
		text := state
		for _, change := range []struct {
			place uint16
			text  string
		}{{first, fmt.Sprint(x)}, {second, fmt.Sprint(y)}} {
			if all := numbers.FindAllIndex(text, -1); int(change.place) < len(all) {
				at := all[change.place]
				text = append(append(append([]byte(nil), text[:at[0]]...), change.text...), text[at[1]:]...)
			}
		}
		var s State
		if json.Unmarshal(text, &s) != nil {
			return
		}
		b := newVillage(t, func(c *Config) { c.Adaptive, c.Zero.Max = true, 20 })
		b.now, b.load = a.now, 1
		b.Import(s, time.Duration(behind), b.now)
		b.run(5 * time.Second)
		if out := b.last; out.Replicas < -1 || out.Replicas > 20 || out.Awake < 0 {
			t.Errorf("%d pods, %d awake, after %s", out.Replicas, out.Awake, text)
		}
	})
}
