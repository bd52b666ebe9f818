package keep

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxText bounds the text of the histograms. What is beyond it is left out: the pods of the
// highest ranks.
const maxText = 8 << 10

// Text returns the histograms of idle times for a status: one for each rank, separated by
// semicolons. Each is a list of the shortest idle time of a bucket and its weight, such as
// "1m20s=3.2 4m=1".
func (k *History) Text() string {
	var b strings.Builder
	for i, g := range k.gaps {
		var one strings.Builder
		for bucket, weight := range g.weight {
			if weight >= 0.05 {
				fmt.Fprintf(&one, " %v=%.2g", wholeEdge(bucket), weight)
			}
		}
		if b.Len()+one.Len() > maxText {
			break
		}
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(strings.TrimPrefix(one.String(), " "))
	}
	return b.String()
}

// wholeEdge is the first whole second of a bucket.
func wholeEdge(bucket int) time.Duration {
	return time.Duration(math.Ceil(edge(bucket).Seconds())) * time.Second
}

// ParseText reads what Text returned into State.Gaps. Import checks the weights.
func ParseText(text string) ([][]float32, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > 2*maxText {
		return nil, fmt.Errorf("idle times of %d bytes, at most %d are read", len(text), 2*maxText)
	}
	var all [][]float32
	for one := range strings.SplitSeq(text, ";") {
		weights := make([]float32, buckets+1)
		for field := range strings.FieldsSeq(one) {
			idle, weight, _ := strings.Cut(field, "=")
			d, err := time.ParseDuration(idle)
			if err != nil {
				return nil, fmt.Errorf("idle time %q: %w", field, err)
			}
			w, err := strconv.ParseFloat(weight, 32)
			if err != nil {
				return nil, fmt.Errorf("idle time %q: %w", field, err)
			}
			weights[bucketOf(d)] = float32(w)
		}
		all = append(all, weights)
	}
	return all, nil
}
