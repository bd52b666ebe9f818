package keep

import (
	"math"
	"time"
)

const (
	// minTime and MaxTime bound the idle times that are told apart. Each bucket is a quarter of an
	// octave wide.
	minTime   = 10 * time.Second
	MaxTime   = 4 * time.Hour
	perOctave = 4
	buckets   = 42
	// memory is how many gaps a histogram remembers: each new one makes the others weigh 1/memory
	// less.
	memory = 64
	// priorGaps is the weight of the prior. It is spread over the buckets and over "never", and
	// fades as real gaps come.
	priorGaps = 6.0
)

// edge is the shortest idle time of a bucket.
func edge(bucket int) time.Duration {
	return time.Duration(float64(minTime) * math.Exp2(float64(bucket)/perOctave))
}

// bucketOf is the bucket of an idle time. Those above MaxTime share the last one.
func bucketOf(idle time.Duration) int {
	if idle <= minTime {
		return 0
	}
	bucket := int(perOctave * math.Log2(float64(idle)/float64(minTime)))
	if idle >= edge(bucket+1) { // the logarithm was rounded
		bucket++
	}
	return min(bucket, buckets)
}

// gaps is a histogram of the times for which a pod was idle before it was needed again. Newer gaps
// weigh more.
type gaps struct {
	weight [buckets + 1]float32 // the last one is for gaps above MaxTime
	total  float32
	// mean and spread are averages of the newest gaps and of their distance from the mean. They
	// tell a rhythm, which is finer than a bucket. A new process learns it again.
	mean, spread time.Duration
	heard        int32
}

func (g *gaps) add(idle time.Duration) {
	const fade = 1 - 1.0/memory
	for i := range g.weight {
		g.weight[i] *= fade
	}
	g.weight[bucketOf(idle)]++
	if g.heard++; g.heard == 1 {
		g.mean, g.spread = idle, idle
	} else {
		g.spread += ((idle - g.mean).Abs() - g.spread) / 4
		g.mean += (idle - g.mean) / 4
	}
	g.total = g.total*fade + 1
}

// prior is how much each bucket weighs in addition, and how much "never" does. Without knowledge,
// each bucket is as likely as the next.
func (g *gaps) prior() (each, never float64) {
	w := priorGaps * 3 / (3 + float64(g.total))
	return w * 0.8 / buckets, w * 0.2
}

// outlook answers, for a pod that has been idle for so long: what is the best that keeping it can
// bring? It looks at each time until which the pod could be kept, and takes the one with the best
// chance of use per second kept. This is the Gittins index of keeping.
//
// chance is the probability that the pod is needed until then, held how long it would be kept on
// average.
func (g *gaps) outlook(idle time.Duration) (until time.Duration, chance float64, held time.Duration) {
	each, never := g.prior()
	first := bucketOf(idle)
	if first == buckets {
		return idle, 0, 0
	}
	// Gaps of a bucket end evenly over it; those before idle are over.
	from, to := edge(first), edge(first+1)
	if first == 0 {
		from = 0
	}
	future := func(bucket int) float64 {
		w := float64(g.weight[bucket]) + each
		if bucket == first {
			w *= float64(to-idle) / float64(to-from)
		}
		return w
	}
	alive := never + float64(g.weight[buckets])
	for i := first; i < buckets; i++ {
		alive += future(i)
	}
	var best, used, kept float64
	left, at := alive, idle
	for i := first; i < buckets; i++ {
		w, end := future(i), edge(i+1)
		kept += (left - w/2) * (end - at).Seconds()
		used += w
		left -= w
		at = end
		if value := used / kept; value > best {
			best = value
			until, chance, held = end, used/alive, time.Duration(kept/alive*float64(time.Second))
		}
	}
	return until, chance, held
}

// rhythm returns between which idle times a pod is needed again, if the newest gaps tell it so
// exactly that waking it ahead takes little memory.
func (g *gaps) rhythm() (from, to time.Duration, ok bool) {
	margin := 2*g.spread + time.Second
	return g.mean - margin, g.mean + margin, g.heard > 1 && margin <= near
}
