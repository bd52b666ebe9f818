// The token of whoever looks. It is kept until the tab is closed, and sent in a header only.
const place = "ebb-token";

// With a key, `kubectl ebb dashboard` has put it behind the # of the address that it printed. That
// part of an address is never sent; it goes from the address here at once.
export const withKey = document.documentElement.dataset.login === "key";
const given = location.hash.match(/^#key=([\w-]+)$/);
if (given) {
  sessionStorage.setItem(place, given[1]);
  history.replaceState(null, "", location.pathname + "#/");
}

let token = sessionStorage.getItem(place) || "";

export const session = {
  header() {
    return token ? { Authorization: "Bearer " + token } : {};
  },
  signedIn: () => token !== "",
  signIn(text) {
    token = text.trim().replace(/^Bearer\s+/i, "");
    sessionStorage.setItem(place, token);
  },
  signOut() {
    token = "";
    sessionStorage.removeItem(place);
  },
};
