package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// MaxAnnouncementBytes bounds the body of a POST to PathAnnounce.
const MaxAnnouncementBytes = 4096

// Announcement is what a queue-proxy tells every activator when its user container begins to answer
// and, with Ready false, when it begins to drain.
type Announcement struct {
	Namespace string `json:"namespace"`
	Revision  string `json:"revision"`
	Pod       string `json:"pod"`
	// Address is where to send requests: the pod's IP and the data port of its protocol.
	Address netip.AddrPort `json:"address"`
	Ready   bool           `json:"ready"`
	// ProcessStarted is when queue-proxy's process began; UserReady is when the user container
	// first answered its readiness probe. Both are by the node's clock.
	ProcessStarted time.Time `json:"processStarted,omitzero"`
	UserReady      time.Time `json:"userReady,omitzero"`
	// SlotFree marks an offer: a slot became free and is kept for the receiver, whose request was
	// refused before (see HeaderNoQueue). It says nothing about the pod's readiness.
	SlotFree bool `json:"slotFree,omitempty"`
	// Asleep is how deeply the pod sleeps, as standby.Level spells it, and empty if it is awake. A
	// request wakes it.
	Asleep string `json:"asleep,omitempty"`
	// Sequence grows with each announcement of a pod, so that the receiver can ignore an older one.
	Sequence uint64 `json:"sequence"`
}

// Encode returns a's JSON.
func (a Announcement) Encode() []byte {
	data, err := json.Marshal(a)
	if err != nil {
		panic(fmt.Sprintf("wire: an announcement of plain fields does not encode: %v", err))
	}
	return data
}

// DecodeAnnouncement decodes one announcement. It must name a pod, its revision and a usable
// address.
func DecodeAnnouncement(data []byte) (Announcement, error) {
	if len(data) > MaxAnnouncementBytes {
		return Announcement{}, fmt.Errorf("announcement is longer than %d bytes", MaxAnnouncementBytes)
	}
	var a Announcement
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&a); err != nil {
		return Announcement{}, fmt.Errorf("announcement is not the expected JSON: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Announcement{}, errors.New("announcement is followed by something else")
	}
	switch {
	case a.Namespace == "" || a.Revision == "" || a.Pod == "":
		return Announcement{}, errors.New("announcement lacks namespace, revision or pod")
	case !a.Address.IsValid() || a.Address.Port() == 0:
		return Announcement{}, errors.New("announcement lacks an address with a port")
	case a.Address.Addr().IsUnspecified() || a.Address.Addr().IsMulticast():
		return Announcement{}, fmt.Errorf("announced address %s cannot be a pod's", a.Address)
	}
	return a, nil
}
