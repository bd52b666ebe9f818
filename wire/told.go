package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"ebb.dev/ebb/wire/protobuf"
)

// HeaderLoad is the field of a response by which a user container tells its load, such as
// "waiting=3, running=8". Queue-proxy removes it where the revision scales by it.
const HeaderLoad = "Ebb-Load"

// HeaderBusy is the field of a response by which a user container says for how long it will be busy
// although no request is open: a duration such as 90s, or 0 when it no longer is. Queue-proxy
// removes it where the revision's annotation busy-for allows it.
const HeaderBusy = "Ebb-Busy"

// HeaderFailed is the field of a response, or over HTTP/2 of its trailers, by which a user
// container says "true" of an answer that is bad whatever its status says. A judge of rollouts
// counts it as failed. Queue-proxy always removes it.
const HeaderFailed = "Ebb-Failed"

// MaxTold is how many metrics a user container may tell.
const MaxTold = 4

// Told are the values of the metrics that a user container tells, by their place in the list that
// its revision has.
type Told struct {
	// Known has a bit for each value that is known now.
	Known  uint8
	Values [MaxTold]float64
}

// Set makes the value of a place known.
func (t *Told) Set(place int, value float64) {
	t.Known |= 1 << place
	t.Values[place] = value
}

// At returns the value of a place, and whether it is known.
func (t *Told) At(place int) (value float64, known bool) {
	return t.Values[place], t.Known&(1<<place) != 0
}

// append appends the known values, zero too: what is left out is not known.
func (t *Told) append(data []byte) []byte {
	for place := range MaxTold {
		if value, known := t.At(place); known {
			data = protobuf.AppendFixed(data, statTold+place, math.Float64bits(value))
		}
	}
	return data
}

func (t *Told) decode(place int, value protobuf.Field) error {
	var f float64
	if err := value.Double(&f); err != nil {
		return err
	}
	t.Set(place, f)
	return nil
}

// ToldMetric says where queue-proxy finds a metric that the user container tells.
type ToldMetric struct {
	Name string `json:"name"`
	// Port of the pod and Path are where metrics are in Prometheus' text format. Without a Port the
	// metric is in HeaderLoad.
	Port int    `json:"port,omitempty"`
	Path string `json:"path,omitempty"`
}

// ReadTold reads a JSON array of at most MaxTold metrics; "" is none.
func ReadTold(text string) ([]ToldMetric, error) {
	if text == "" {
		return nil, nil
	}
	var all []ToldMetric
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	if len(all) > MaxTold {
		return nil, fmt.Errorf("%d metrics are more than %d", len(all), MaxTold)
	}
	for _, m := range all {
		if m.Name == "" || m.Port < 0 || m.Port > 65535 || m.Port > 0 && (m.Path == "" || m.Path[0] != '/') {
			return nil, errors.New("a metric needs a name, and one with a port from 1 to 65535 a path")
		}
	}
	return all, nil
}
