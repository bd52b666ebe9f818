package forward

import "runtime"

// A reader that always has more to read keeps a CPU for the runtime's time slice, 10 ms, and there
// can be thousands of them: a request of another connection would wait that long for each. So only
// a few of those readers work at a time, and the rest wait in the lane of their server. Then a
// connection with little to read finds a CPU at once. One CPU is left to it, because with all of
// them busy the runtime looks for arrivals only every 10 ms.

// busy is called when a read has filled the reader's buffer. It waits for a place in the lane.
func (c *h2conn) busy() {
	if !c.lane {
		c.srv.lane <- struct{}{}
		c.lane = true
	}
	runtime.Gosched()
}

// unbusy is called before the reader may wait, and when it ends.
func (c *h2conn) unbusy() {
	if c.lane {
		c.lane = false
		<-c.srv.lane
	}
}
