package revision

import (
	"regexp"
	"strings"
)

// advices say what to do, by the words of Kubernetes. The first that matches counts.
var advices = []struct {
	reason string // "" is any
	words  *regexp.Regexp
	what   string
}{
	{"", regexp.MustCompile(`(?i)references non-existent (secret|config) key: (\S+)`), "Add that key, or name another in the Service"},
	{"", regexp.MustCompile(`(?i)couldn't find key \S+ in (Secret|ConfigMap) `), "Add that key, or name another in the Service"},
	{"", regexp.MustCompile(`(?i)\bserviceaccount "[^"]+" not found`), "Create it, or name another in the Service"},
	{"", regexp.MustCompile(`(?i)\bsecrets? "[^"]+" not found`), "Create the Secret, or name another in the Service"},
	{"", regexp.MustCompile(`(?i)\bconfigmaps? "[^"]+" not found`), "Create the ConfigMap, or name another in the Service"},
	{"", regexp.MustCompile(`(?i)\bpersistentvolumeclaim "[^"]+" not found`), "Create the claim, or name another in the Service"},
	{"", regexp.MustCompile(`(?i)\bstorageclass\S* "[^"]*" not found`), "Create the StorageClass, or make the claim anew with another"},
	{"", regexp.MustCompile(`unbound immediate PersistentVolumeClaims`), "`kubectl describe pvc` says what the claim waits for"},
	{"", regexp.MustCompile(`exceeded quota: `), "Raise that quota, or let the Service ask for less"},
	{"", regexp.MustCompile(`failed quota: .*must specify`), "Set that on the container, or as a default by a LimitRange"},
	{"", regexp.MustCompile(`violates PodSecurity`), "Set the securityContext so, or change the label pod-security.kubernetes.io/enforce of the namespace"},
	{"", regexp.MustCompile(`(?i)(minimum|maximum) \S+ usage per|limit to request ratio`), "Change the resources of the container, or the LimitRange"},
	{"", regexp.MustCompile(`failed calling webhook`), "Its server does not answer: mend it, or delete its registration"},
	{"", regexp.MustCompile(`admission webhook .* denied|ValidatingAdmissionPolicy .* denied`), "Change what it refuses, or that policy"},
	{"Unschedulable", regexp.MustCompile(`didn't match Pod's node affinity/selector`), "Label a node so, or change the node selector or affinity of the Service"},
	{"Unschedulable", regexp.MustCompile(`Insufficient `), "Add nodes, or let the Service request less"},
	{"Unschedulable", regexp.MustCompile(`untolerated taint`), "Add nodes, or tolerate the taint"},
	{"ErrImageNeverPull", nil, "Load the image onto the node, or change imagePullPolicy"},
	{"InvalidImageName", nil, "Mend the name of the image"},
	{"ErrImagePull", nil, "Mend the name of the image, or give the Service credentials for its registry"},
	{"ImagePullBackOff", nil, "Mend the name of the image, or give the Service credentials for its registry"},
	{"CreateContainerConfigError", regexp.MustCompile(`runAsNonRoot`), "Set runAsUser, or use an image with a numeric user other than 0"},
	{"FailedAttachVolume", regexp.MustCompile(`Multi-Attach error`), "Use a volume that several nodes may mount, or max-scale 1"},
	{"FailedCreatePodSandBox", nil, "Look at the network plug-in and the runtime of the node"},
	{"NetworkNotReady", nil, "Look at the network plug-in of the node"},
	{"Evicted", nil, "Request what the container uses, or add nodes"},
}

// advised adds what to do to the words of Kubernetes, without the last full stop: others quote it.
// What a container fails with is the user's to know.
func advised(found trouble) trouble {
	if found.none() || found.container {
		return found
	}
	for _, a := range advices {
		if (a.reason == "" || a.reason == found.reason) && (a.words == nil || a.words.MatchString(found.message)) {
			found.message = sentence(found.message) + " " + a.what
			return found
		}
	}
	return found
}

// unadvised returns the words of a trouble without what to do: it is done.
func unadvised(words string) string {
	for _, a := range advices {
		if before, found := strings.CutSuffix(words, " "+a.what); found {
			return before
		}
	}
	return words
}
