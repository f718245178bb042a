const shown = document.getElementById("cluster");
const source = new EventSource("/data/live?views=cluster");
source.addEventListener("cluster", (event) => {
  shown.textContent = JSON.stringify(JSON.parse(event.data), null, 2);
});
