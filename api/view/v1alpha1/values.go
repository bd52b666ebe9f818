package v1alpha1

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Values are figures with three significant digits, or more for a large whole part. NaN stands for
// what is not known, and is null in JSON.
type Values []float64

// MarshalJSON implements json.Marshaler.
func (v Values) MarshalJSON() ([]byte, error) {
	text := make([]byte, 0, 2+5*len(v))
	text = append(text, '[')
	for i, f := range v {
		if i > 0 {
			text = append(text, ',')
		}
		switch {
		case math.IsNaN(f) || math.IsInf(f, 0):
			text = append(text, "null"...)
		default:
			text = strconv.AppendFloat(text, Rounded(f), 'f', -1, 64)
		}
	}
	return append(text, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Values) UnmarshalJSON(text []byte) error {
	var all []*float64
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("read values: %w", err)
	}
	if all == nil {
		*v = nil
		return nil
	}
	*v = make(Values, len(all))
	for i, f := range all {
		(*v)[i] = math.NaN()
		if f != nil {
			(*v)[i] = *f
		}
	}
	return nil
}

// Rounded keeps three significant digits, and all before the point.
func Rounded(f float64) float64 {
	if f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return f
	}
	digits := max(2-int(math.Floor(math.Log10(math.Abs(f)))), 0)
	shift := math.Pow10(min(digits, 300))
	return math.Round(f*shift) / shift
}
