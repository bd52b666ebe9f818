package exchange

func (m *Machine) lost(e *Event) Do {
	if m.mayRetry(e.Loss) {
		m.retries++
		m.workedOn = m.workedOn || e.Loss != Unseen
		m.state, m.kept, m.ending.Retried = Connecting, false, true
		return Drop | Rewind | Connect
	}
	return m.end(Ending{Cause: UpstreamFailed, Err: e.Err, Code: e.Code, upstreamEnded: true})
}

// mayRetry is the one rule of sending a request again after its upstream was lost. In every case no
// response has come, no interim one either, and the request is as it was: nothing of its body left,
// or what left is still here.
//
//	Unseen   the upstream did nothing with the request     up to three times
//	Unused   a reused connection brought no response       once, and only an idempotent request
//	Broken   anything else                                 never
func (m *Machine) mayRetry(loss Loss) bool {
	if waiting&(1<<m.state) == 0 || m.forgotten || m.heard {
		return false
	}
	switch loss {
	case Unseen:
		return m.retries < 3
	case Unused:
		return m.retries == 0 && m.reused && m.traits.Idempotent
	}
	return false
}
