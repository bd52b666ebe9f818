package main

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestADeadContainerThatIsCalledReadyIsNoticed(t *testing.T) {
	var pods podList
	err := json.Unmarshal([]byte(`{"items": [
	 {"metadata": {"namespace": "a", "name": "alive"}, "status": {"containerStatuses": [{"containerID": "containerd://11", "ready": true}]}},
	 {"metadata": {"namespace": "a", "name": "half"}, "status": {"containerStatuses": [{"containerID": "containerd://11", "ready": true}, {"containerID": "containerd://22", "ready": true}]}},
	 {"metadata": {"namespace": "b", "name": "known-to-be-dead"}, "status": {"containerStatuses": [{"containerID": "containerd://33", "ready": false}]}},
	 {"metadata": {"namespace": "b", "name": "not-begun"}, "status": {}}]}`), &pods)
	if err != nil {
		t.Fatal(err)
	}
	running := runningTasks("TASK    PID     STATUS    \n11      901     RUNNING\n22      902     STOPPED\n")
	if want := []string{"11"}; !slices.Equal(running, want) {
		t.Errorf("%v run, want %v", running, want)
	}
	if dead, want := pods.claims(running), []string{"a/half"}; !slices.Equal(dead, want) {
		t.Errorf("dead but called ready: %v, want %v", dead, want)
	}
}
